//! The tokens of all pairs, in a cache file or in memory, read by pair. Pairs are stored whole: `batches.rs` truncates
//! them and adds end tokens, so that other maximum lengths use the same cache.
//! Not here: making the cache (`prepare.rs`) and its layout (`../header.rs`).

use crate::header::{CacheKind, PAIR_BYTES};
use crate::store::{CacheFile, Expected, OpenError, hex};
use crate::{Damage, DataError};
use plimsoll_units::Bytes;
use std::fmt;
use std::path::Path;

/// Pairs per read.
const SCAN_PAIRS: usize = 1 << 12;

/// The pairs of the data in order. Reads are cheap from any thread.
pub struct PairStore {
    cache: CacheFile,
    pairs: u64,
}

/// The position of a pair's tokens: its source from `start` to `middle`, its target from there to `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PairSpan {
    pub start: u64,
    pub middle: u64,
    pub end: u64,
}

impl PairSpan {
    /// Tokens of the source and of the target.
    pub(super) fn lengths(self) -> [usize; 2] {
        [(self.middle - self.start) as usize, (self.end - self.middle) as usize]
    }
}

impl PairStore {
    /// Opens a cache and verifies all of it.
    pub(crate) fn open(path: &Path, key: &blake3::Hash, vocab_size: usize) -> Result<Self, OpenError> {
        let cache = CacheFile::open(path, &Expected { key, kind: CacheKind::Pairs, vocab_size })?;
        Self::of_cache(cache).map_err(OpenError::Damaged)
    }

    /// Uses a complete cache file in memory.
    pub(super) fn of_bytes(bytes: Vec<u8>) -> Result<Self, Damage> {
        Self::of_cache(CacheFile::of_bytes(bytes)?)
    }

    fn of_cache(cache: CacheFile) -> Result<Self, Damage> {
        let entries = cache.length() - cache.header.tokens_end();
        let store = Self { cache, pairs: entries / PAIR_BYTES as u64 };
        let mut last = 0;
        // Each position is checked against the previous one, so the only error left is that the last one does not end
        // the tokens.
        store.for_each_span(|span| last = span.end).map_err(|_| Damage::BadHeader)?;
        if last == store.tokens() { Ok(store) } else { Err(Damage::BadHeader) }
    }

    /// Number of pairs.
    pub fn len(&self) -> u64 {
        self.pairs
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pairs == 0
    }

    /// Tokens of all sources and targets.
    pub fn tokens(&self) -> u64 {
        self.cache.header.tokens
    }

    /// One more than the largest possible id.
    pub fn vocab_size(&self) -> usize {
        self.cache.header.vocab_size as usize
    }

    /// Identifies data, columns and tokenizer together: 64 hexadecimal digits, the same on every machine.
    pub fn fingerprint(&self) -> String {
        hex(&self.cache.header.key)
    }

    /// Bytes of text that the tokens encode, prefixes included.
    pub fn bytes_of_text(&self) -> Bytes {
        Bytes(self.cache.header.text_bytes)
    }

    /// Tokens of a pair's source and of its target.
    /// Errors: `CacheChanged`.
    pub fn lengths(&self, pair: u64) -> Result<[usize; 2], DataError> {
        Ok(self.span(pair)?.lengths())
    }

    /// Copies the first tokens of a source into all of `out`. Errors: `CacheChanged`. Panics if it has fewer.
    pub fn read_source(&self, pair: u64, out: &mut [i32]) -> Result<(), DataError> {
        self.read(self.span(pair)?, 0, out)
    }

    /// Copies the first tokens of a target into all of `out`. Errors: `CacheChanged`. Panics if it has fewer.
    pub fn read_target(&self, pair: u64, out: &mut [i32]) -> Result<(), DataError> {
        self.read(self.span(pair)?, 1, out)
    }

    /// Copies the first tokens of a side, the source (0) or the target (1), into all of `out`.
    pub(super) fn read(&self, span: PairSpan, side: usize, out: &mut [i32]) -> Result<(), DataError> {
        let tokens = span.lengths()[side];
        assert!(out.len() <= tokens, "{} tokens of {tokens}", out.len());
        self.cache.read_tokens([span.start, span.middle][side], out)
    }

    /// The position of a pair. Errors: `CacheChanged`.
    pub(super) fn span(&self, pair: u64) -> Result<PairSpan, DataError> {
        assert!(pair < self.pairs, "pair {pair} of {}", self.pairs);
        let mut bytes = [0; PAIR_BYTES + 8];
        if pair == 0 {
            self.cache.read_at(self.entry_at(0), &mut bytes[8..])?;
        } else {
            self.cache.read_at(self.entry_at(pair) - 8, &mut bytes)?;
        }
        let [start, middle, end] = [0, 1, 2].map(|at| u64::from_le_bytes(bytes.as_chunks().0[at]));
        self.checked(start, middle, end)
    }

    /// Calls `visit` with the positions of all pairs in order, reading many at a time.
    /// Errors: `CacheChanged`, also if an entry contradicts the previous one.
    pub(super) fn for_each_span(&self, mut visit: impl FnMut(PairSpan)) -> Result<(), DataError> {
        let mut buffer = vec![0; SCAN_PAIRS * PAIR_BYTES];
        let mut start = 0;
        for first in (0..self.pairs).step_by(SCAN_PAIRS) {
            let pairs = (self.pairs - first).min(SCAN_PAIRS as u64) as usize;
            let bytes = &mut buffer[..pairs * PAIR_BYTES];
            self.cache.read_at(self.entry_at(first), bytes)?;
            for [middle, end] in bytes.as_chunks::<8>().0.as_chunks::<2>().0 {
                let span = self.checked(start, u64::from_le_bytes(*middle), u64::from_le_bytes(*end))?;
                start = span.end;
                visit(span);
            }
        }
        Ok(())
    }

    fn entry_at(&self, pair: u64) -> u64 {
        self.cache.header.tokens_end() + pair * PAIR_BYTES as u64
    }

    fn checked(&self, start: u64, middle: u64, end: u64) -> Result<PairSpan, DataError> {
        let is_sound = start <= middle && middle <= end && end <= self.tokens();
        if is_sound { Ok(PairSpan { start, middle, end }) } else { Err(self.cache.changed()) }
    }
}

impl fmt::Debug for PairStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PairStore")
            .field("header", &self.cache.header)
            .field("pairs", &self.pairs)
            .finish_non_exhaustive()
    }
}
