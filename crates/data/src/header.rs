//! The header of a token cache: 128 bytes that say what follows and prove that it is whole.
//!
//! ```text
//!   0  magic: the kind         32  bytes of text the tokens stand for, u64
//!   8  format version, u32     40  blake3 of the tokens, 32 bytes
//!  12  bytes per token, u32    72  key: blake3 of data and tokenizer, 32 bytes
//!  16  vocabulary size, u64   104  first 24 bytes of the blake3 of bytes 0..104
//!  24  count of tokens, u64   128  the tokens, u16 or u32; all numbers little endian
//! ```
//!
//! Behind the tokens of pairs (`PLIMPAIR`) come two u64 a pair: the positions where its source and its target end.
//! A source starts where the pair before it ends. Behind the tokens of chats (`PLIMCHAT`) comes a bit a token, 1 if it is
//! trained on, the first in the lowest bit, filled up to whole u64; then one u64 a chat: the position where it ends. What
//! is hashed as the tokens is all that follows the header.

use crate::Damage;

pub(crate) const HEADER_BYTES: usize = 128;
/// Changes whenever the same data would give other tokens or another layout: pieces, separators, this header.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// What a pair has behind the tokens.
pub(crate) const PAIR_BYTES: usize = 16;

/// What a cache holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One stream of tokens.
    Tokens,
    /// Pairs of sources and targets.
    Pairs,
    /// Chats, each token trained on or not.
    Chats,
}

impl Kind {
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

/// What a token cache says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub kind: Kind,
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

    /// Reads the header that a file of `file_bytes` starts with and checks it against that length, but not the tokens.
    pub(crate) fn of_start(start: &[u8], file_bytes: u64) -> Result<Self, Damage> {
        let Some((bytes, _)) = start.split_at_checked(HEADER_BYTES) else {
            return Err(Damage::NoHeader { found_bytes: file_bytes });
        };
        let kind = Kind::of_magic(&bytes[..8]).ok_or(Damage::WrongMagic)?;
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

    /// Where the tokens end in the file.
    pub(crate) fn tokens_end(&self) -> u64 {
        HEADER_BYTES as u64 + self.tokens * self.token_bytes as u64
    }

    fn check(&self, found_bytes: u64) -> Result<(), Damage> {
        if self.vocab_size == 0 || self.vocab_size > 1 << 31 || self.token_bytes != token_bytes_for(self.vocab_size) {
            return Err(Damage::BadHeader);
        }
        let expected_bytes = self.tokens.checked_mul(self.token_bytes as u64).ok_or(Damage::BadHeader)?;
        let behind = found_bytes.checked_sub(expected_bytes);
        let fits = behind.is_some_and(|behind| match self.kind {
            Kind::Tokens => behind == 0,
            Kind::Pairs => behind.is_multiple_of(PAIR_BYTES as u64),
            Kind::Chats => behind >= mask_bytes(self.tokens) && behind.is_multiple_of(8),
        });
        if !fits {
            return Err(Damage::WrongLength { expected_bytes, found_bytes });
        }
        Ok(())
    }
}

/// What the bits of so many tokens take.
pub(crate) fn mask_bytes(tokens: u64) -> u64 {
    tokens.div_ceil(64) * 8
}

/// Two bytes a token where the vocabulary allows, else four.
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
        let kind = Kind::Tokens;
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
    fn pairs_have_whole_entries_behind_their_tokens() {
        let header = Header { kind: Kind::Pairs, ..header(3, 256) };
        let with_entries = |bytes: usize| of_file(&[file(&header), vec![0; bytes]].concat());
        assert_eq!(with_entries(2 * PAIR_BYTES), Ok(header.clone()));
        assert!(matches!(with_entries(PAIR_BYTES - 1), Err(Damage::WrongLength { .. })));
        assert!(matches!(of_file(&header.to_bytes()), Err(Damage::WrongLength { .. })));
    }

    #[test]
    fn chats_have_a_bit_a_token_and_their_ends_behind_them() {
        let header = Header { kind: Kind::Chats, ..header(65, 256) };
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
            let start = if with_magic { [&Kind::Tokens.magic()[..], &FORMAT_VERSION.to_le_bytes()].concat() } else { Vec::new() };
            prop_assert!(of_file(&[start, bytes].concat()).is_err());
        }
    }
}
