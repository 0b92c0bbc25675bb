//! Blocks of queries in attention, cut into strips along the diagonal. `attention.rs` has a picture.

use std::ops::Range;

/// Number of queries in a strip of causal attention. Measured: with smaller strips the matrix products become too small
/// for the library.
const STRIP: usize = 48;

/// Queries whose scores are in memory at the same time, and the keys that they are scored against.
pub(super) struct Block {
    pub(super) queries: Range<usize>,
    pub(super) keys: Range<usize>,
    pub(super) causal: bool,
}

/// Consecutive queries of a block and the keys that they attend to, relative to the block's first query and key.
pub(super) struct Strip {
    pub(super) queries: Range<usize>,
    /// Keys that the last of these queries attends to, which include those of the others.
    pub(super) keys: Range<usize>,
    /// Keys that no query of an earlier strip attends to.
    pub(super) new_keys: Range<usize>,
}

impl Block {
    /// The strips along the diagonal if attention is causal; otherwise one strip with the whole block.
    pub(super) fn strips(&self) -> impl Iterator<Item = Strip> {
        let count = self.queries.len();
        let length = if self.causal { STRIP } else { count };
        (0..count).step_by(length).map(move |first| {
            let end = count.min(first + length);
            Strip { queries: first..end, keys: 0..self.seen(end), new_keys: self.seen(first)..self.seen(end) }
        })
    }

    /// Number of the block's keys that the queries before query `end` attend to.
    pub(super) fn seen(&self, end: usize) -> usize {
        match (self.causal, end) {
            (_, 0) => 0,
            (false, _) => self.keys.len(),
            (true, end) => (self.queries.start + end).saturating_sub(self.keys.start).min(self.keys.len()),
        }
    }

    /// The first query that attends to a key. Both are relative to the block's first.
    pub(super) fn first_seeing(&self, key: usize) -> usize {
        match self.causal {
            true => (self.keys.start + key).saturating_sub(self.queries.start).min(self.queries.len()),
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_cover_visible_keys_and_each_key_once() {
        for (queries, keys, causal) in [
            (0..64, 0..64, true),
            (64..128, 0..128, true),
            (64..128, 32..128, true),
            (64..130, 100..130, true),
            (0..1, 0..1, true),
            (128..192, 4..192, false),
        ] {
            let block = Block { queries: queries.clone(), keys: keys.clone(), causal };
            let (mut next_query, mut next_key) = (0, 0);
            for Strip { queries: of_strip, keys: seen, new_keys } in block.strips() {
                assert_eq!(
                    (of_strip.start, new_keys.start, seen.start),
                    (next_query, next_key, 0),
                    "{queries:?} {keys:?}"
                );
                (next_query, next_key) = (of_strip.end, new_keys.end);
                assert_eq!(new_keys.end, seen.end);
                let last = queries.start + of_strip.end - 1;
                let visible = keys.clone().filter(|&key| !causal || key <= last).count();
                assert_eq!(seen.len(), visible, "{queries:?} {keys:?}: keys up to query {last}");
            }
            assert_eq!((next_query, next_key), (queries.len(), keys.len()), "{queries:?} {keys:?}");
        }
    }
}
