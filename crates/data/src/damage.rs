//! The ways in which a token cache can be damaged. A damaged cache is rebuilt; the message gives the reason.

/// What is wrong with a token cache.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The file is shorter than a header.
    #[error("{found_bytes} bytes are too short for a header")]
    NoHeader {
        /// The length of the file.
        found_bytes: u64,
    },
    /// The file does not start with the magic of a token cache.
    #[error("it is not a token cache")]
    WrongMagic,
    /// The file has another version of the format.
    #[error("format version {found}, not {expected}")]
    WrongVersion {
        /// The version in the file.
        found: u32,
        /// The version of this program.
        expected: u32,
    },
    /// The header contradicts its own checksum or itself.
    #[error("the header is damaged")]
    BadHeader,
    /// The file belongs to other data or another tokenizer.
    #[error("it was made from other data")]
    WrongKey,
    /// The file is cut short, or has something appended.
    #[error("{found_bytes} bytes of tokens, not {expected_bytes}")]
    WrongLength {
        /// Expected by the header.
        expected_bytes: u64,
        /// Found after the header.
        found_bytes: u64,
    },
    /// A token outside the vocabulary.
    #[error("token {token} is outside its vocabulary of {vocab_size}")]
    ForeignToken {
        /// The first such token.
        token: u32,
        /// Size of the vocabulary.
        vocab_size: u64,
    },
    /// The tokens contradict their checksum.
    #[error("the tokens do not match their checksum")]
    BadTokens,
}
