//! Selects a free block for a request.

use super::{Allocator, Search};

impl Allocator {
    /// Removes from its list the smallest free block of the pool and stream that fits the request, and returns it.
    pub(super) fn best_fit(&mut self, search: &Search) -> Option<u32> {
        if self.collects_garbage() {
            self.pools[search.pool].requests += 1;
        }
        let found = self.smallest(search)?;
        if let Some(limit) = self.settings.max_split_bytes {
            let bytes = self.block(found).bytes;
            // Unsplittable blocks are kept for requests of similar size.
            let too_large = match search.bytes < limit {
                true => bytes >= limit,
                false => bytes >= search.bytes.saturating_add(self.settings.max_non_split_rounding_bytes),
            };
            if too_large {
                return None;
            }
        }
        self.remove_free(found);
        Some(found)
    }

    fn smallest(&self, search: &Search) -> Option<u32> {
        let from = (search.stream, search.bytes, 0, 0);
        let free = &self.pools[search.pool].free;
        let mut fitting = free.range(from..).take_while(|block| block.0 == search.stream).map(|block| block.3);
        let first = fitting.next()?;
        if self.block(first).space.is_none() {
            return Some(first);
        }
        if !self.settings.expandable_segments {
            // Expandable segments were turned off: uses only blocks of other segments, and skips the first.
            return fitting.find(|block| self.block(*block).space.is_none());
        }
        // A block before unmapped addresses counts together with them, so that blocks that can't grow are used first.
        let mut best = first;
        for next in fitting {
            if self.block(best).space.is_none() || self.expandable_bytes(next) >= self.expandable_bytes(best) {
                break;
            }
            best = next;
        }
        Some(best)
    }

    /// Size of a free block, including the unmapped range that it can grow into.
    fn expandable_bytes(&self, index: u32) -> u64 {
        let block = self.block(index);
        let next = block.next.map(|next| self.block(next)).filter(|next| !next.mapped);
        block.bytes + next.map_or(0, |next| next.bytes)
    }
}
