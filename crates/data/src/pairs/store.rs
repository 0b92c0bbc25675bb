//! The tokens of all pairs, memory-mapped from a cache or held in memory, read by pair. Lengths are whole: where pairs
//! are cut, and what ends them, is for `batches.rs`, so that other lengths need no other cache.
//! Not here: making the cache (`prepare.rs`) and its layout (`../header.rs`).

use crate::Damage;
use crate::header::{HEADER_BYTES, Header, Kind, PAIR_BYTES};
use crate::store::{OpenError, Storage, hex, map_verified};
use std::fmt;
use std::path::Path;
use units::Bytes;

/// The pairs of the data in order. Reading is cheap from any thread.
pub struct PairStore {
    file: Storage,
    header: Header,
    pairs: u64,
}

impl PairStore {
    /// Maps a cache and checks all of it.
    pub(crate) fn open(path: &Path, key: &blake3::Hash) -> Result<Self, OpenError> {
        let (file, header) = map_verified(path, key, Kind::Pairs)?;
        Self::of_file(file, header).map_err(OpenError::Damaged)
    }

    /// Takes a whole cache file that is in memory.
    pub(super) fn of_bytes(bytes: Vec<u8>) -> Result<Self, Damage> {
        let header = Header::of_file(&bytes)?;
        Self::of_file(Storage::Owned(bytes), header)
    }

    fn of_file(file: Storage, header: Header) -> Result<Self, Damage> {
        let entries = file.bytes().len() - HEADER_BYTES - header.tokens as usize * header.token_bytes;
        let store = Self { file, pairs: (entries / PAIR_BYTES) as u64, header };
        let mut last = 0;
        for pair in 0..store.pairs {
            let [start, middle, end] = store.bounds(pair);
            if start != last || middle < start || end < middle {
                return Err(Damage::BadHeader);
            }
            last = end;
        }
        if last == store.header.tokens { Ok(store) } else { Err(Damage::BadHeader) }
    }

    /// How many pairs there are.
    pub fn len(&self) -> u64 {
        self.pairs
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pairs == 0
    }

    /// Tokens of all sources and targets.
    pub fn tokens(&self) -> u64 {
        self.header.tokens
    }

    /// One more than the largest id that can occur.
    pub fn vocab_size(&self) -> usize {
        self.header.vocab_size as usize
    }

    /// Names data, columns and tokenizer together: 64 hexadecimal digits, the same on every machine.
    pub fn fingerprint(&self) -> String {
        hex(&self.header.key)
    }

    /// How many bytes of text the tokens stand for, prefixes included.
    pub fn bytes_of_text(&self) -> Bytes {
        Bytes(self.header.text_bytes)
    }

    /// Tokens of a pair's source and of its target.
    pub fn lengths(&self, pair: u64) -> [usize; 2] {
        let [start, middle, end] = self.bounds(pair);
        [(middle - start) as usize, (end - middle) as usize]
    }

    /// Copies the first tokens of a source into all of `out`. Panics if it has fewer.
    pub fn read_source(&self, pair: u64, out: &mut [i32]) {
        let [start, middle, _] = self.bounds(pair);
        assert!(out.len() as u64 <= middle - start, "{} tokens of a source of {}", out.len(), middle - start);
        self.file.read_tokens(self.header.token_bytes, start, out);
    }

    /// Copies the first tokens of a target into all of `out`. Panics if it has fewer.
    pub fn read_target(&self, pair: u64, out: &mut [i32]) {
        let [_, middle, end] = self.bounds(pair);
        assert!(out.len() as u64 <= end - middle, "{} tokens of a target of {}", out.len(), end - middle);
        self.file.read_tokens(self.header.token_bytes, middle, out);
    }

    /// Where the source starts, where it ends and the target starts, and where that ends.
    fn bounds(&self, pair: u64) -> [u64; 3] {
        assert!(pair < self.pairs, "pair {pair} of {}", self.pairs);
        let bytes = self.file.bytes();
        let entries = bytes[bytes.len() - self.pairs as usize * PAIR_BYTES..].as_chunks::<8>().0;
        let entry = 2 * pair as usize;
        let start = entry.checked_sub(1).map_or(0, |before| u64::from_le_bytes(entries[before]));
        [start, u64::from_le_bytes(entries[entry]), u64::from_le_bytes(entries[entry + 1])]
    }
}

impl fmt::Debug for PairStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PairStore").field("header", &self.header).field("pairs", &self.pairs).finish_non_exhaustive()
    }
}
