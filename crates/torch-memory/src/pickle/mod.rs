//! Reads Python's pickles as plain data: `None`, booleans, numbers, text, bytes, lists, tuples and dictionaries, in
//! protocols 0 to 5. Nothing is ever imported, called or built: a pickle that asks for it is refused, with the name of
//! what it would have called.
//! Not here: what the data mean (`snapshot/`). Source: the opcodes' definitions in CPython's `pickletools.py`.
//!
//! Values lie in flat stores and name each other by index, so that depth costs no stack, a value that is shared is read
//! once, and a value that holds itself does no harm. Memory is in proportion to the bytes read.

mod document;
mod reader;
#[cfg(test)]
mod tests;

pub use document::{Document, Value};
pub use reader::{MAX_BYTES, read};

/// Why bytes are not a pickle of plain data. `at` is the offset of the instruction.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PickleError {
    /// More bytes than are read.
    #[error("it has {bytes} bytes, and at most {MAX_BYTES} are read")]
    TooLong {
        /// How many there are.
        bytes: usize,
    },
    /// The first byte starts no pickle.
    #[error("it is not a pickle: its first byte is 0x{first:02x}")]
    NotAPickle {
        /// That byte.
        first: u8,
    },
    /// A protocol that does not exist yet.
    #[error("it is a pickle of protocol {protocol}, and protocols 0 to 5 are read")]
    UnknownProtocol {
        /// As stated in the pickle.
        protocol: u8,
    },
    /// The end came before the pickle's.
    #[error("it is cut off: it ends at byte {at}, inside the pickle")]
    Truncated {
        /// Bytes that there are.
        at: usize,
    },
    /// An instruction that makes something else than plain data.
    #[error("it is no plain data: at byte {at} it asks to {what}, which is not done")]
    NotPlain {
        /// Where.
        at: usize,
        /// What would be done: `import os.system`.
        what: String,
    },
    /// No instruction of any protocol.
    #[error("it is damaged: byte {at} is 0x{code:02x}, which is no instruction of a pickle")]
    UnknownInstruction {
        /// Where.
        at: usize,
        /// The byte.
        code: u8,
    },
    /// An instruction whose operands are missing or of the wrong kind.
    #[error("it is damaged: the instruction at byte {at} {what}")]
    Damaged {
        /// Where.
        at: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// More values than are read.
    #[error("it holds more than {limit} values")]
    TooManyValues {
        /// How many are read.
        limit: usize,
    },
}
