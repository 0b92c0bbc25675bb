//! The header of a token cache: 128 bytes that describe the rest of the file and verify it.
//!
//! ```text
//!   0  magic: the kind         32  bytes of text the tokens stand for, u64
//!   8  format version, u32     40  blake3 of the tokens, 32 bytes
//!  12  bytes per token, u32    72  key: blake3 of data and tokenizer, 32 bytes
//!  16  vocabulary size, u64   104  first 24 bytes of the blake3 of bytes 0..104
//!  24  count of tokens, u64   128  the tokens, u16 or u32; all numbers little endian
//! ```
//!
//! The tokens of pairs (`PLIMPAIR`) are followed by two u64 per pair: the end positions of its source and its target. A
//! source starts where the previous pair ends. The tokens of chats (`PLIMCHAT`) are followed by one bit per token, 1 if
//! it is trained on, lowest bit first, padded to a whole u64; then by one u64 per chat: its end position. The hash of
//! the tokens covers everything after the header.

use crate::Damage;

pub(crate) const HEADER_BYTES: usize = 128;
/// Incremented if the same data would yield different tokens or another layout: pieces, separators, this header.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// Bytes after the tokens for each text of a pair, or of a sample with more texts.
pub(crate) const SIDE_BYTES: usize = 8;

/// The contents of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheKind {
    /// One stream of tokens.
    Tokens,
    /// Pairs of sources and targets.
    Pairs,
    /// Chats, with a bit per token: trained on or not.
    Chats,
}

impl CacheKind {
    fn magic(self) -> &'static [u8; 8] {
        match self {
            Self::Tokens => b"PLIMTOKS",
            Self::Pairs => b"PLIMPAIR",
            Self::Chats => b"PLIMCHAT",
        }
    }

    fn of_magic(magic: &[u8]) -> Option<Self> {
        [Self::Tokens, Self::Pairs, Self::Chats].into_iter().find(|kind| kind.magic() == magic)
    }
}

/// The contents of a token cache's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub kind: CacheKind,
    pub token_bytes: usize,
    pub vocab_size: u64,
    pub tokens: u64,
    pub text_bytes: u64,
    pub tokens_hash: [u8; 32],
    pub key: [u8; 32],
}

impl Header {
    pub(crate) fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(self.kind.magic());
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.token_bytes as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.vocab_size.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.tokens.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.text_bytes.to_le_bytes());
        bytes[40..72].copy_from_slice(&self.tokens_hash);
        bytes[72..104].copy_from_slice(&self.key);
        let check = blake3::hash(&bytes[..104]);
        bytes[104..].copy_from_slice(&check.as_bytes()[..24]);
        bytes
    }

    /// Parses the header at the start of a file and checks it against the length `file_bytes`. Does not check the
    /// tokens.
    pub(crate) fn of_start(start: &[u8], file_bytes: u64) -> Result<Self, Damage> {
        let Some((bytes, _)) = start.split_at_checked(HEADER_BYTES) else {
            return Err(Damage::NoHeader { found_bytes: file_bytes });
        };
        let kind = CacheKind::of_magic(&bytes[..8]).ok_or(Damage::WrongMagic)?;
        let version = u32::from_le_bytes(array(&bytes[8..12]));
        if version != FORMAT_VERSION {
            return Err(Damage::WrongVersion { found: version, expected: FORMAT_VERSION });
        }
        if blake3::hash(&bytes[..104]).as_bytes()[..24] != bytes[104..] {
            return Err(Damage::BadHeader);
        }
        let header = Self {
            kind,
            token_bytes: u32::from_le_bytes(array(&bytes[12..16])) as usize,
            vocab_size: u64::from_le_bytes(array(&bytes[16..24])),
            tokens: u64::from_le_bytes(array(&bytes[24..32])),
            text_bytes: u64::from_le_bytes(array(&bytes[32..40])),
            tokens_hash: array(&bytes[40..72]),
            key: array(&bytes[72..104]),
        };
        header.check(file_bytes.saturating_sub(HEADER_BYTES as u64))?;
        Ok(header)
    }

    /// Offset of the end of the tokens in the file.
    pub(crate) fn tokens_end(&self) -> u64 {
        HEADER_BYTES as u64 + self.tokens * self.token_bytes as u64
    }

    fn check(&self, found_bytes: u64) -> Result<(), Damage> {
        if self.vocab_size == 0 || self.vocab_size > 1 << 31 || self.token_bytes != token_bytes_for(self.vocab_size) {
            return Err(Damage::BadHeader);
        }
        let expected_bytes = self.tokens.checked_mul(self.token_bytes as u64).ok_or(Damage::BadHeader)?;
        let after_tokens = found_bytes.checked_sub(expected_bytes);
        let fits = after_tokens.is_some_and(|after_tokens| match self.kind {
            CacheKind::Tokens => after_tokens == 0,
            CacheKind::Pairs => after_tokens.is_multiple_of(SIDE_BYTES as u64),
            CacheKind::Chats => after_tokens >= mask_bytes(self.tokens) && after_tokens.is_multiple_of(8),
        });
        if !fits {
            return Err(Damage::WrongLength { expected_bytes, found_bytes });
        }
        Ok(())
    }
}

/// Bytes of a mask for this many tokens.
pub(crate) fn mask_bytes(tokens: u64) -> u64 {
    tokens.div_ceil(64) * 8
}

/// Two bytes per token if the vocabulary fits, otherwise four.
pub(crate) fn token_bytes_for(vocab_size: u64) -> usize {
    if vocab_size <= 1 << 16 { 2 } else { 4 }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("the slice has the length of the array")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(tokens: u64, vocab_size: u64) -> Header {
        let token_bytes = token_bytes_for(vocab_size);
        let kind = CacheKind::Tokens;
        Header { kind, token_bytes, vocab_size, tokens, text_bytes: 4 * tokens, tokens_hash: [7; 32], key: [9; 32] }
    }

    fn of_file(file: &[u8]) -> Result<Header, Damage> {
        Header::of_start(file, file.len() as u64)
    }

    fn file(header: &Header) -> Vec<u8> {
        let tokens = vec![0; header.tokens as usize * header.token_bytes];
        [&header.to_bytes()[..], &tokens].concat()
    }

    #[test]
    fn contradictions_are_damage() {
        let good = file(&header(3, 256));
        assert_eq!(of_file(&good[..10]), Err(Damage::NoHeader { found_bytes: 10 }));
        let wrong_length = Damage::WrongLength { expected_bytes: 6, found_bytes: 5 };
        assert_eq!(of_file(&good[..good.len() - 1]), Err(wrong_length));
        let mut wrong_width = header(3, 256);
        wrong_width.token_bytes = 4;
        assert_eq!(of_file(&file(&wrong_width)), Err(Damage::BadHeader));
        let mut overflow = header(0, 256);
        overflow.tokens = u64::MAX;
        assert_eq!(of_file(&overflow.to_bytes()), Err(Damage::BadHeader));
        let mut newer = good;
        newer[8] += 1;
        let expected = FORMAT_VERSION;
        assert_eq!(of_file(&newer), Err(Damage::WrongVersion { found: expected + 1, expected }));
    }

    #[test]
    fn pairs_have_whole_entries_after_their_tokens() {
        let header = Header { kind: CacheKind::Pairs, ..header(3, 256) };
        let with_entries = |bytes: usize| of_file(&[file(&header), vec![0; bytes]].concat());
        assert_eq!(with_entries(2 * SIDE_BYTES), Ok(header.clone()));
        assert!(matches!(with_entries(SIDE_BYTES - 1), Err(Damage::WrongLength { .. })));
        assert!(matches!(of_file(&header.to_bytes()), Err(Damage::WrongLength { .. })));
    }

    #[test]
    fn chats_have_one_bit_per_token_then_their_ends() {
        let header = Header { kind: CacheKind::Chats, ..header(65, 256) };
        let with_bytes = |bytes: usize| of_file(&[file(&header), vec![0; bytes]].concat());
        assert_eq!(with_bytes(16 + 8), Ok(header.clone()));
        for wrong in [0, 8, 23] {
            assert!(matches!(with_bytes(wrong), Err(Damage::WrongLength { .. })), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn headers_survive(tokens in 0u64..50, vocab_size in 1u64..200_000) {
            let header = header(tokens, vocab_size);
            prop_assert_eq!(of_file(&file(&header)), Ok(header));
        }

        #[test]
        fn any_changed_byte_is_refused(at in 0..HEADER_BYTES, xor in 1u8..) {
            let mut bytes = file(&header(3, 256));
            bytes[at] ^= xor;
            prop_assert!(of_file(&bytes).is_err());
        }

        #[test]
        fn random_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300), with_magic: bool) {
            let start = if with_magic { [&CacheKind::Tokens.magic()[..], &FORMAT_VERSION.to_le_bytes()].concat() } else { Vec::new() };
            prop_assert!(of_file(&[start, bytes].concat()).is_err());
        }
    }
}
