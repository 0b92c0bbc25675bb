//! The tokens of the data, in a cache file or in memory, read by position.
//! Not here: making the cache (`shards.rs`), its header (`header.rs`), pairs (`pairs/store.rs`), and the ends and
//! trained tokens of chats (`chats/store.rs`).
//!
//! Token caches are read, not mapped: if a mapped file is truncated, the system kills the process.

use crate::header::{CacheKind, HEADER_BYTES, Header, token_bytes_for};
use crate::{Damage, DataError};
use plimsoll_units::Bytes;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A cache up to this size is read into memory; a longer one stays on disk.
const RESIDENT_BYTES_MAX: u64 = 16 << 20;
/// Size of the parts in which a file is checked: enough for blake3 to use several cores.
const CHECK_BYTES: usize = 4 << 20;

/// All tokens of the data in order, with a separator after each document. Reads are cheap from any thread.
pub struct TokenStore {
    pub(crate) cache: CacheFile,
    fingerprint: String,
}

/// A complete cache file with a valid header.
pub(crate) struct CacheFile {
    pub header: Header,
    bytes: Storage,
    /// Header included.
    length: u64,
}

/// Where the bytes of a cache are.
///
/// They are not memory-mapped: another run, or another machine that shares the folder, could truncate the file, and the
/// next access to a page past its end would kill this process with a signal. Reading into a buffer turns that into an
/// error.
enum Storage {
    File { file: File, path: PathBuf },
    Memory(Vec<u8>),
}

/// The requirements for a usable cache.
pub(crate) struct Expected<'a> {
    pub key: &'a blake3::Hash,
    pub kind: CacheKind,
    /// The tokenizer's vocabulary size.
    pub vocab_size: usize,
}

/// Why a cache cannot be used.
#[derive(Debug)]
pub(crate) enum OpenError {
    Absent,
    Damaged(Damage),
    Unreadable(io::Error),
}

impl TokenStore {
    /// Tokens already in memory, for tests and generated data.
    /// Panics if a token is not below `vocab_size`.
    pub fn in_memory(tokens: &[u32], vocab_size: usize, bytes_of_text: Bytes) -> Self {
        let token_bytes = token_bytes_for(vocab_size as u64);
        let mut file = vec![0; HEADER_BYTES];
        append_tokens(tokens, vocab_size, token_bytes, &mut file);
        let hash = *blake3::hash(&file[HEADER_BYTES..]).as_bytes();
        let header = Header {
            kind: CacheKind::Tokens,
            token_bytes,
            vocab_size: vocab_size as u64,
            tokens: tokens.len() as u64,
            text_bytes: bytes_of_text.0,
            tokens_hash: hash,
            key: hash,
        };
        let length = file.len() as u64;
        Self { cache: CacheFile { header, bytes: Storage::Memory(file), length }, fingerprint: hex(&hash) }
    }

    /// Opens a cache and verifies all of it, tokens included.
    pub(crate) fn open(path: &Path, key: &blake3::Hash, vocab_size: usize) -> Result<Self, OpenError> {
        Ok(Self::of_cache(CacheFile::open(path, &Expected { key, kind: CacheKind::Tokens, vocab_size })?))
    }

    pub(crate) fn of_cache(cache: CacheFile) -> Self {
        Self { fingerprint: hex(&cache.header.key), cache }
    }

    /// Number of tokens, separators included.
    pub fn len(&self) -> u64 {
        self.cache.header.tokens
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One more than the largest possible id.
    pub fn vocab_size(&self) -> usize {
        self.cache.header.vocab_size as usize
    }

    /// Identifies data and tokenizer together: 64 hexadecimal digits, the same on every machine.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Bytes of text that the tokens encode, for computing the loss per byte. Separators count as none.
    pub fn bytes_of_text(&self) -> Bytes {
        Bytes(self.cache.header.text_bytes)
    }

    /// Copies the tokens from `start` on into all of `out`.
    /// Errors: `CacheChanged` if the file was truncated or overwritten since it was opened.
    /// Panics if the range extends past the end.
    pub fn read(&self, start: u64, out: &mut [i32]) -> Result<(), DataError> {
        self.cache.read_tokens(start, out)
    }
}

impl fmt::Debug for TokenStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenStore").field("header", &self.cache.header).finish_non_exhaustive()
    }
}

impl CacheFile {
    /// Opens a file and verifies all of it: header, length, checksum, and that each token is in the vocabulary. A
    /// checksum alone is not enough: the writer of the file could also write the checksum.
    pub(crate) fn open(path: &Path, expected: &Expected<'_>) -> Result<Self, OpenError> {
        Self::open_resident(path, expected, RESIDENT_BYTES_MAX)
    }

    fn open_resident(path: &Path, expected: &Expected<'_>, resident_bytes_max: u64) -> Result<Self, OpenError> {
        let mut file = plimsoll_files::open_regular(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => OpenError::Absent,
            _ => OpenError::Unreadable(error),
        })?;
        let length = file.metadata().map_err(OpenError::Unreadable)?.len();
        let bytes = if length <= resident_bytes_max {
            let mut bytes = Vec::with_capacity(length as usize);
            (&mut file).take(length).read_to_end(&mut bytes).map_err(OpenError::Unreadable)?;
            Storage::Memory(bytes)
        } else {
            Storage::File { file, path: path.to_owned() }
        };
        let mut start = vec![0; HEADER_BYTES.min(length as usize)];
        bytes.read_at(0, &mut start).map_err(OpenError::Unreadable)?;
        let header = Header::of_start(&start, length).map_err(OpenError::Damaged)?;
        let cache = Self { header, bytes, length };
        cache.verify(expected)?;
        Ok(cache)
    }

    /// A complete file in memory that this process just wrote.
    pub(crate) fn of_bytes(bytes: Vec<u8>) -> Result<Self, Damage> {
        let length = bytes.len() as u64;
        Ok(Self { header: Header::of_start(&bytes, length)?, bytes: Storage::Memory(bytes), length })
    }

    /// Header included.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Copies the bytes from `offset` on into all of `out`.
    /// Errors: `CacheChanged` if the file no longer has them.
    pub(crate) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DataError> {
        self.bytes.read_at(offset, out).map_err(|_| self.changed())
    }

    /// Copies the tokens from `start` on into all of `out`.
    /// Errors: `CacheChanged` if the file no longer has them, or they are no longer valid tokens. Panics if the range
    /// is past the end.
    pub(crate) fn read_tokens(&self, start: u64, out: &mut [i32]) -> Result<(), DataError> {
        let end = start.checked_add(out.len() as u64);
        let tokens = self.header.tokens;
        assert!(end.is_some_and(|end| end <= tokens), "tokens {start}+{} of {tokens}", out.len());
        let width = self.header.token_bytes;
        let mut offset = HEADER_BYTES as u64 + start * width as u64;
        if let Storage::Memory(bytes) = &self.bytes {
            decode(&bytes[offset as usize..][..out.len() * width], width, out);
            return Ok(());
        }
        let mut buffer = [0; 4096];
        let mut highest = 0;
        for part in out.chunks_mut(buffer.len() / width) {
            let bytes = &mut buffer[..part.len() * width];
            self.read_at(offset, bytes)?;
            decode(bytes, width, part);
            offset += bytes.len() as u64;
            highest = part.iter().fold(highest, |highest, &token| highest.max(token as u32));
        }
        if u64::from(highest) < self.header.vocab_size || out.is_empty() { Ok(()) } else { Err(self.changed()) }
    }

    fn verify(&self, expected: &Expected<'_>) -> Result<(), OpenError> {
        let damaged = |damage| Err(OpenError::Damaged(damage));
        let header = &self.header;
        if header.kind != expected.kind {
            return damaged(Damage::WrongMagic);
        } else if header.key != *expected.key.as_bytes() || header.vocab_size != expected.vocab_size as u64 {
            return damaged(Damage::WrongKey);
        }
        let mut hasher = blake3::Hasher::new();
        let mut foreign = None;
        let mut buffer = vec![0; CHECK_BYTES.min(self.length as usize)];
        let mut offset = HEADER_BYTES as u64;
        while offset < self.length {
            let bytes = &mut buffer[..(self.length - offset).min(CHECK_BYTES as u64) as usize];
            self.bytes.read_at(offset, bytes).map_err(OpenError::Unreadable)?;
            hasher.update_rayon(bytes);
            let tokens = header.tokens_end().saturating_sub(offset).min(bytes.len() as u64) as usize;
            let token = highest_token(&bytes[..tokens], header.token_bytes);
            foreign = foreign.or(token.filter(|&token| u64::from(token) >= header.vocab_size));
            offset += bytes.len() as u64;
        }
        if hasher.finalize() != header.tokens_hash {
            return damaged(Damage::BadTokens);
        }
        match foreign {
            Some(token) => damaged(Damage::ForeignToken { token, vocab_size: header.vocab_size }),
            None => Ok(()),
        }
    }

    /// The error for a file that changed.
    pub(crate) fn changed(&self) -> DataError {
        let path = match &self.bytes {
            Storage::File { path, .. } => path.clone(),
            Storage::Memory(_) => PathBuf::from("memory"),
        };
        DataError::CacheChanged { path }
    }
}

impl Storage {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Memory(bytes) => {
                let start = offset as usize;
                let bytes = bytes.get(start..start + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
                out.copy_from_slice(bytes);
                Ok(())
            }
            Self::File { file, .. } => plimsoll_files::read_exact_at(file, out, offset),
        }
    }
}

/// Decodes tokens as stored in a cache, each `width` bytes wide.
fn decode(bytes: &[u8], width: usize, out: &mut [i32]) {
    match width {
        2 => copy(bytes, out, |pair: [u8; 2]| u16::from_le_bytes(pair).into()),
        _ => copy(bytes, out, i32::from_le_bytes),
    }
}

fn highest_token(bytes: &[u8], width: usize) -> Option<u32> {
    match width {
        2 => bytes.as_chunks().0.iter().map(|token| u16::from_le_bytes(*token).into()).max(),
        _ => bytes.as_chunks().0.iter().map(|token| u32::from_le_bytes(*token)).max(),
    }
}

fn copy<const N: usize>(bytes: &[u8], out: &mut [i32], token: impl Fn([u8; N]) -> i32) {
    for (chunk, out) in bytes.as_chunks::<N>().0.iter().zip(out) {
        *out = token(*chunk);
    }
}

/// Appends tokens in the format of a cache. Panics if one is not below `vocab_size`.
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
            store.read(1, &mut out).unwrap();
            assert_eq!(out, [last as i32, 0, 1]);
            assert_eq!((store.len(), store.vocab_size(), store.bytes_of_text()), (4, vocab_size, Bytes(9)));
            store.read(4, &mut []).unwrap();
        }
    }

    /// Rows longer than the read buffer, in both widths, from disk and from memory.
    #[test]
    fn tokens_read_alike_from_disk_and_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tokens");
        for vocab_size in [9000, 70_000] {
            let ids: Vec<u32> = (0..9000).collect();
            let store = TokenStore::in_memory(&ids, vocab_size, Bytes(0));
            let Storage::Memory(mut bytes) = store.cache.bytes else { unreachable!() };
            bytes[..HEADER_BYTES].copy_from_slice(&store.cache.header.to_bytes());
            std::fs::write(&path, &bytes).unwrap();
            let key = blake3::Hash::from_bytes(store.cache.header.key);
            let expected = Expected { key: &key, kind: CacheKind::Tokens, vocab_size };
            for resident_bytes_max in [0, u64::MAX] {
                let cache = CacheFile::open_resident(&path, &expected, resident_bytes_max).unwrap();
                assert_eq!(matches!(cache.bytes, Storage::File { .. }), resident_bytes_max == 0);
                let mut out = vec![0; 8999];
                cache.read_tokens(1, &mut out).unwrap();
                assert!(out.iter().copied().eq(1..9000));
            }
        }
    }

    #[test]
    #[should_panic(expected = "tokens 2+3 of 4")]
    fn reading_past_the_end_panics() {
        TokenStore::in_memory(&[1, 2, 3, 4], 10, Bytes(4)).read(2, &mut [0; 3]).unwrap();
    }
}
