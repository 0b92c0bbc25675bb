//! The tokens of all pairs, in a cache file or in memory, read by pair. Pairs are stored whole: `batches.rs` truncates
//! them and adds end tokens, so that other maximum lengths use the same cache.
//! Not here: making the cache (`prepare.rs`) and its layout (`../header.rs`).

use crate::header::{CacheKind, SIDE_BYTES};
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
    /// Texts of a pair: 2, and more if it has negatives.
    sides: usize,
}

/// The position of a pair's tokens: those of its source end at the second bound, where those of its target begin, and so
/// on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PairSpan {
    bounds: Vec<u64>,
}

impl PairSpan {
    /// Tokens of a text: of the source (0), the target (1), or a negative.
    pub(super) fn length(&self, side: usize) -> usize {
        (self.bounds[side + 1] - self.bounds[side]) as usize
    }

    /// Tokens of the source, and of the longest other text.
    pub(super) fn lengths(&self) -> [usize; 2] {
        let others = (1..self.bounds.len() - 1).map(|side| self.length(side));
        [self.length(0), others.max().unwrap_or(0)]
    }

    fn end(&self) -> u64 {
        self.bounds.last().copied().unwrap_or(0)
    }
}

impl PairStore {
    /// Opens a cache of pairs with this many texts each, and verifies all of it.
    pub(crate) fn open(path: &Path, key: &blake3::Hash, vocab_size: usize, sides: usize) -> Result<Self, OpenError> {
        let cache = CacheFile::open(path, &Expected { key, kind: CacheKind::Pairs, vocab_size })?;
        Self::of_cache(cache, sides).map_err(OpenError::Damaged)
    }

    /// Uses a complete cache file in memory.
    pub(super) fn of_bytes(bytes: Vec<u8>, sides: usize) -> Result<Self, Damage> {
        Self::of_cache(CacheFile::of_bytes(bytes)?, sides)
    }

    fn of_cache(cache: CacheFile, sides: usize) -> Result<Self, Damage> {
        let (entries, bytes) = (cache.length() - cache.header.tokens_end(), (sides * SIDE_BYTES) as u64);
        if !entries.is_multiple_of(bytes) {
            return Err(Damage::BadHeader);
        }
        let store = Self { cache, pairs: entries / bytes, sides };
        let mut last = 0;
        // Each position is checked against the previous one, so the only error left is that the last one does not end
        // the tokens.
        store.for_each_span(|span| last = span.end()).map_err(|_| Damage::BadHeader)?;
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

    /// Texts of a pair: 2, and more if it has negatives.
    pub fn sides(&self) -> usize {
        self.sides
    }

    /// Tokens of all texts.
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

    /// Tokens of a pair's source, and of its target or its longest negative.
    /// Errors: `CacheChanged`.
    pub fn lengths(&self, pair: u64) -> Result<[usize; 2], DataError> {
        Ok(self.span(pair)?.lengths())
    }

    /// Copies the first tokens of a source into all of `out`. Errors: `CacheChanged`. Panics if it has fewer.
    pub fn read_source(&self, pair: u64, out: &mut [i32]) -> Result<(), DataError> {
        self.read(&self.span(pair)?, 0, out)
    }

    /// Copies the first tokens of a target into all of `out`. Errors: `CacheChanged`. Panics if it has fewer.
    pub fn read_target(&self, pair: u64, out: &mut [i32]) -> Result<(), DataError> {
        self.read(&self.span(pair)?, 1, out)
    }

    /// Copies the first tokens of a text, the source (0), the target (1) or a negative, into all of `out`.
    pub(super) fn read(&self, span: &PairSpan, side: usize, out: &mut [i32]) -> Result<(), DataError> {
        let tokens = span.length(side);
        assert!(out.len() <= tokens, "{} tokens of {tokens}", out.len());
        self.cache.read_tokens(span.bounds[side], out)
    }

    /// The position of a pair. Errors: `CacheChanged`.
    pub(super) fn span(&self, pair: u64) -> Result<PairSpan, DataError> {
        assert!(pair < self.pairs, "pair {pair} of {}", self.pairs);
        let mut bytes = vec![0; SIDE_BYTES + self.entry_bytes()];
        if pair == 0 {
            self.cache.read_at(self.entry_at(0), &mut bytes[SIDE_BYTES..])?;
        } else {
            self.cache.read_at(self.entry_at(pair) - SIDE_BYTES as u64, &mut bytes)?;
        }
        self.checked(bytes.as_chunks().0.iter().map(|&bound| u64::from_le_bytes(bound)).collect())
    }

    /// Calls `visit` with the positions of all pairs in order, reading many at a time.
    /// Errors: `CacheChanged`, also if an entry contradicts the previous one.
    pub(super) fn for_each_span(&self, mut visit: impl FnMut(PairSpan)) -> Result<(), DataError> {
        let mut buffer = vec![0; SCAN_PAIRS * self.entry_bytes()];
        let mut start = 0;
        for first in (0..self.pairs).step_by(SCAN_PAIRS) {
            let pairs = (self.pairs - first).min(SCAN_PAIRS as u64) as usize;
            let bytes = &mut buffer[..pairs * self.entry_bytes()];
            self.cache.read_at(self.entry_at(first), bytes)?;
            for ends in bytes.as_chunks().0.chunks_exact(self.sides) {
                let ends = ends.iter().map(|&end| u64::from_le_bytes(end));
                let span = self.checked([start].into_iter().chain(ends).collect())?;
                start = span.end();
                visit(span);
            }
        }
        Ok(())
    }

    fn entry_at(&self, pair: u64) -> u64 {
        self.cache.header.tokens_end() + pair * self.entry_bytes() as u64
    }

    /// Bytes of a pair after the tokens.
    fn entry_bytes(&self) -> usize {
        self.sides * SIDE_BYTES
    }

    fn checked(&self, bounds: Vec<u64>) -> Result<PairSpan, DataError> {
        let span = PairSpan { bounds };
        let is_sound = span.bounds.is_sorted() && span.end() <= self.tokens();
        if is_sound { Ok(span) } else { Err(self.cache.changed()) }
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
