//! How a token cache can be broken. A damaged cache is rebuilt; this says why.

/// What is wrong with a token cache.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Shorter than a header.
    #[error("{found_bytes} bytes are too short for a header")]
    NoHeader {
        /// The length of the file.
        found_bytes: u64,
    },
    /// It does not start as a token cache does.
    #[error("it is not a token cache")]
    WrongMagic,
    /// Written by another version of the format.
    #[error("format version {found}, not {expected}")]
    WrongVersion {
        /// In the file.
        found: u32,
        /// Of this program.
        expected: u32,
    },
    /// The header contradicts its own checksum or itself.
    #[error("its header is damaged")]
    BadHeader,
    /// It belongs to other data or another tokenizer.
    #[error("it was made from other data")]
    WrongKey,
    /// Cut short, or with something appended.
    #[error("{found_bytes} bytes of tokens, not {expected_bytes}")]
    WrongLength {
        /// By the header.
        expected_bytes: u64,
        /// After the header.
        found_bytes: u64,
    },
    /// A token that its vocabulary does not have.
    #[error("token {token} is outside its vocabulary of {vocab_size}")]
    ForeignToken {
        /// The first such token.
        token: u32,
        /// How many there are.
        vocab_size: u64,
    },
    /// The tokens contradict their checksum.
    #[error("its tokens do not match their checksum")]
    BadTokens,
}
