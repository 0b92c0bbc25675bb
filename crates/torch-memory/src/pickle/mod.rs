//! Reads Python pickles as plain data: `None`, booleans, numbers, text, bytes, lists, tuples and dictionaries, in
//! protocols 0 to 5. Never imports, calls or constructs anything: a pickle that requests this is refused, and the error
//! names the request.
//! Not here: the meaning of the data (`snapshot/`). Source: the opcode definitions in CPython's `pickletools.py`.
//!
//! Values are stored in flat arrays and refer to each other by index, so that nesting uses no stack, a shared value is
//! read once, and a value that contains itself is harmless. Memory is proportional to the bytes read.

mod document;
mod reader;
#[cfg(test)]
mod tests;

pub use document::{Document, Value};
pub use reader::{MAX_BYTES, read};

/// Why bytes are not a pickle of plain data. `at` is the offset of the instruction.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PickleError {
    /// The pickle is too long.
    #[error("it has {bytes} bytes; the limit is {MAX_BYTES}")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The first byte starts no pickle.
    #[error("it is not a pickle: its first byte is 0x{first:02x}")]
    NotAPickle {
        /// That byte.
        first: u8,
    },
    /// An unknown protocol.
    #[error("it uses pickle protocol {protocol}; protocols 0 to 5 are supported")]
    UnknownProtocol {
        /// The protocol in the pickle.
        protocol: u8,
    },
    /// The bytes end before the pickle does.
    #[error("it is truncated: it ends at byte {at}, inside the pickle")]
    Truncated {
        /// The number of bytes.
        at: usize,
    },
    /// An instruction that creates something other than plain data.
    #[error("it is not plain data: at byte {at} it asks to {what}, which is refused")]
    NotPlain {
        /// Offset of the instruction.
        at: usize,
        /// The requested action: `import os.system`.
        what: String,
    },
    /// An instruction that exists in no protocol.
    #[error("it is damaged: byte {at} is 0x{code:02x}, which is not a pickle instruction")]
    UnknownInstruction {
        /// Offset of the byte.
        at: usize,
        /// The byte.
        code: u8,
    },
    /// An instruction whose operands are missing or have the wrong type.
    #[error("it is damaged: the instruction at byte {at} {what}")]
    Damaged {
        /// Offset of the instruction.
        at: usize,
        /// The problem.
        what: &'static str,
    },
    /// Too many values.
    #[error("it holds more than {limit} values")]
    TooManyValues {
        /// The limit.
        limit: usize,
    },
}
