//! The tokens of all chats, their trained mask and the ends of chats, stored in a cache file and read by position.
//! Not here: making the cache (`prepare.rs`) and its layout (`../header.rs`).

use super::ChatFormat;
use crate::header::mask_bytes;
use crate::store::{CacheFile, Expected, OpenError, TokenStore};
use crate::{Damage, DataError};
use std::fmt;
use std::path::Path;

/// Size of a read.
const SCAN_BYTES: usize = 1 << 16;

/// The chats of the data in order. Reads are cheap from any thread.
pub struct ChatStore {
    tokens: TokenStore,
    format: ChatFormat,
    chats: u64,
    trained: u64,
}

impl ChatStore {
    /// Opens a cache of chats of this format, and verifies all of it.
    pub(super) fn open(path: &Path, expected: &Expected<'_>, format: ChatFormat) -> Result<Self, OpenError> {
        let cache = CacheFile::open(path, expected)?;
        let after_tokens = cache.length() - cache.header.tokens_end();
        let chats = (after_tokens - mask_bytes(cache.header.tokens)) / 8;
        let mut store = Self { tokens: TokenStore::of_cache(cache), format, chats, trained: 0 };
        // The check fails if an entry contradicts another, or if the file changed since it was verified.
        store.check().map_err(|_| OpenError::Damaged(Damage::BadHeader))?;
        Ok(store)
    }

    fn check(&mut self) -> Result<(), DataError> {
        let mut last = 0;
        self.for_each_end(|end| last = end)?;
        if last != self.tokens.len() {
            return Err(self.tokens.cache.changed());
        }
        let (start, bytes) = (self.tokens.cache.header.tokens_end(), mask_bytes(self.tokens.len()));
        let mut trained = 0;
        self.scan(start, bytes, |word| trained += u64::from(word.count_ones()))?;
        self.trained = trained;
        Ok(())
    }

    /// The format of the data's rows.
    pub fn format(&self) -> ChatFormat {
        self.format
    }

    /// Number of chats.
    pub fn len(&self) -> u64 {
        self.chats
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.chats == 0
    }

    /// Tokens of the longest chat; 0 if there is none. Errors: `CacheChanged`.
    pub fn longest(&self) -> Result<u64, DataError> {
        let (mut longest, mut start) = (0, 0);
        self.for_each_end(|end| {
            longest = longest.max(end.saturating_sub(start));
            start = end;
        })?;
        Ok(longest)
    }

    /// The tokens of all chats, concatenated.
    pub fn tokens(&self) -> &TokenStore {
        &self.tokens
    }

    /// Number of trained tokens.
    pub fn trained(&self) -> u64 {
        self.trained
    }

    /// Reads whether each of the tokens from `start` on is trained on.
    /// Errors: `CacheChanged`. Panics if the range extends past the end.
    pub fn read_trained(&self, start: u64, out: &mut [bool]) -> Result<(), DataError> {
        let end = start + out.len() as u64;
        assert!(end <= self.tokens.len(), "bits {start}+{} of {}", out.len(), self.tokens.len());
        let first = start / 8;
        let mut bytes = vec![0; (end.div_ceil(8) - first) as usize];
        self.tokens.cache.read_at(self.tokens.cache.header.tokens_end() + first, &mut bytes)?;
        for (at, out) in (start - first * 8..).zip(out) {
            *out = bytes[at as usize / 8] >> (at % 8) & 1 == 1;
        }
        Ok(())
    }

    /// Calls `visit` with the end position of each chat, in order.
    /// Errors: `CacheChanged`, also if an end precedes the previous one.
    pub fn for_each_end(&self, mut visit: impl FnMut(u64)) -> Result<(), DataError> {
        let (mut last, mut is_sound) = (0, true);
        let start = self.tokens.cache.header.tokens_end() + mask_bytes(self.tokens.len());
        self.scan(start, self.chats * 8, |end| {
            is_sound &= last < end && end <= self.tokens.len();
            last = end;
            visit(end);
        })?;
        if is_sound { Ok(()) } else { Err(self.tokens.cache.changed()) }
    }

    fn scan(&self, start: u64, bytes: u64, mut visit: impl FnMut(u64)) -> Result<(), DataError> {
        let mut buffer = vec![0; SCAN_BYTES];
        for at in (0..bytes).step_by(SCAN_BYTES) {
            let part = &mut buffer[..(bytes - at).min(SCAN_BYTES as u64) as usize];
            self.tokens.cache.read_at(start + at, part)?;
            part.as_chunks().0.iter().for_each(|word| visit(u64::from_le_bytes(*word)));
        }
        Ok(())
    }
}

impl fmt::Debug for ChatStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatStore")
            .field("tokens", &self.tokens)
            .field("chats", &self.chats)
            .field("trained", &self.trained)
            .finish()
    }
}
