//! The tokens of the data, memory-mapped from a cache or held in memory, read by position.
//! Not here: making the cache (`shards.rs`), its header (`header.rs`), and pairs (`pairs/store.rs`).

use crate::Damage;
use crate::header::{HEADER_BYTES, Header, Kind, token_bytes_for};
use memmap2::Mmap;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use units::Bytes;

/// All tokens of the data in order, a separator after each document. Reading is cheap from any thread.
pub struct TokenStore {
    /// Header and tokens.
    file: Storage,
    header: Header,
    fingerprint: String,
}

/// A whole cache file, header included.
pub(crate) enum Storage {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

/// Why a cache cannot be used.
#[derive(Debug)]
pub(crate) enum OpenError {
    Absent,
    Damaged(Damage),
    Unreadable(io::Error),
}

impl TokenStore {
    /// Tokens that are in memory already, for tests and for data that is made rather than read.
    /// Panics if a token is not below `vocab_size`.
    pub fn in_memory(tokens: &[u32], vocab_size: usize, bytes_of_text: Bytes) -> Self {
        let token_bytes = token_bytes_for(vocab_size as u64);
        let mut file = vec![0; HEADER_BYTES];
        append_tokens(tokens, vocab_size, token_bytes, &mut file);
        let hash = *blake3::hash(&file[HEADER_BYTES..]).as_bytes();
        let header = Header {
            kind: Kind::Tokens,
            token_bytes,
            vocab_size: vocab_size as u64,
            tokens: tokens.len() as u64,
            text_bytes: bytes_of_text.0,
            tokens_hash: hash,
            key: hash,
        };
        Self { file: Storage::Owned(file), header, fingerprint: hex(&hash) }
    }

    /// Maps a cache and checks all of it, tokens included.
    pub(crate) fn open(path: &Path, key: &blake3::Hash) -> Result<Self, OpenError> {
        let (file, header) = map_verified(path, key, Kind::Tokens)?;
        Ok(Self { file, fingerprint: hex(&header.key), header })
    }

    /// How many tokens there are, separators included.
    pub fn len(&self) -> u64 {
        self.header.tokens
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One more than the largest id that can occur.
    pub fn vocab_size(&self) -> usize {
        self.header.vocab_size as usize
    }

    /// Names data and tokenizer together: 64 hexadecimal digits, the same on every machine.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// How many bytes of text the tokens stand for, so that a loss per byte can be told. Separators stand for none.
    pub fn bytes_of_text(&self) -> Bytes {
        Bytes(self.header.text_bytes)
    }

    /// Copies the tokens from `start` on into all of `out`.
    /// Panics if they reach beyond the end.
    pub fn read(&self, start: u64, out: &mut [i32]) {
        let end = start.checked_add(out.len() as u64);
        assert!(end.is_some_and(|end| end <= self.len()), "tokens {start}+{} of {}", out.len(), self.len());
        self.file.read_tokens(self.header.token_bytes, start, out);
    }
}

impl Storage {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }

    /// Copies the tokens from `start` on, each `width` bytes wide, into all of `out`.
    pub(crate) fn read_tokens(&self, width: usize, start: u64, out: &mut [i32]) {
        let first = HEADER_BYTES + start as usize * width;
        let bytes = &self.bytes()[first..first + out.len() * width];
        match width {
            2 => copy(bytes, out, |pair: [u8; 2]| u16::from_le_bytes(pair).into()),
            _ => copy(bytes, out, i32::from_le_bytes),
        }
    }
}

impl fmt::Debug for TokenStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenStore").field("header", &self.header).finish_non_exhaustive()
    }
}

/// Maps a cache and checks all of it, tokens included.
pub(crate) fn map_verified(path: &Path, key: &blake3::Hash, kind: Kind) -> Result<(Storage, Header), OpenError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(OpenError::Absent);
        }
        Err(error) => return Err(OpenError::Unreadable(error)),
    };
    // SAFETY: nobody writes to the file while it is mapped. `Cache::install` has it written under a name of its own
    // and renames it into place when it is whole; a later build replaces the name, never the bytes of this file.
    let file = unsafe { Mmap::map(&file) }.map_err(OpenError::Unreadable)?;
    let header = Header::of_file(&file).map_err(OpenError::Damaged)?;
    if header.kind != kind {
        return Err(OpenError::Damaged(Damage::WrongMagic));
    }
    if header.key != *key.as_bytes() {
        return Err(OpenError::Damaged(Damage::WrongKey));
    }
    let hash = blake3::Hasher::new().update_rayon(&file[HEADER_BYTES..]).finalize();
    if hash != header.tokens_hash {
        return Err(OpenError::Damaged(Damage::BadTokens));
    }
    Ok((Storage::Mapped(file), header))
}

fn copy<const N: usize>(bytes: &[u8], out: &mut [i32], token: impl Fn([u8; N]) -> i32) {
    for (chunk, out) in bytes.as_chunks::<N>().0.iter().zip(out) {
        *out = token(*chunk);
    }
}

/// Appends tokens as they lie in a cache. Panics if one is not below `vocab_size`.
pub(crate) fn append_tokens(tokens: &[u32], vocab_size: usize, token_bytes: usize, out: &mut Vec<u8>) {
    out.reserve(tokens.len() * token_bytes);
    for &token in tokens {
        assert!((token as usize) < vocab_size, "token {token} of a vocabulary of {vocab_size}");
        out.extend_from_slice(&token.to_le_bytes()[..token_bytes]);
    }
}

pub(crate) fn hex(hash: &[u8; 32]) -> String {
    blake3::Hash::from_bytes(*hash).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_widths_read_back() {
        for vocab_size in [256, 65_536, 65_537, 200_000] {
            let last = vocab_size as u32 - 1;
            let store = TokenStore::in_memory(&[5, last, 0, 1], vocab_size, Bytes(9));
            let mut out = [0; 3];
            store.read(1, &mut out);
            assert_eq!(out, [last as i32, 0, 1]);
            assert_eq!((store.len(), store.vocab_size(), store.bytes_of_text()), (4, vocab_size, Bytes(9)));
            store.read(4, &mut []);
        }
    }

    #[test]
    #[should_panic(expected = "tokens 2+3 of 4")]
    fn reading_beyond_the_end_is_a_bug() {
        TokenStore::in_memory(&[1, 2, 3, 4], 10, Bytes(4)).read(2, &mut [0; 3]);
    }
}
