//! Which free block a request gets.

use super::{Allocator, Search};

impl Allocator {
    /// The smallest free block of the pool and stream that holds the request, taken from its shelf.
    pub(super) fn best_fit(&mut self, search: &Search) -> Option<u32> {
        if self.collects_garbage() {
            self.pools[search.pool].requests += 1;
        }
        let found = self.smallest(search)?;
        if let Some(limit) = self.settings.max_split_bytes {
            let bytes = self.block(found).bytes;
            // Blocks that are not split are kept for requests of about their size.
            let too_large = match search.bytes < limit {
                true => bytes >= limit,
                false => bytes >= search.bytes.saturating_add(self.settings.max_non_split_rounding_bytes),
            };
            if too_large {
                return None;
            }
        }
        self.unshelve(found);
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
            // Expandable segments were turned off: only blocks of others are given out, and the first is passed over.
            return fitting.find(|block| self.block(*block).space.is_none());
        }
        // A block before addresses without memory counts with them, so that what cannot grow is used up first.
        let mut best = first;
        for next in fitting {
            if self.block(best).space.is_none() || self.expandable_bytes(next) >= self.expandable_bytes(best) {
                break;
            }
            best = next;
        }
        Some(best)
    }

    /// The bytes of a free block, with those that it can grow by.
    fn expandable_bytes(&self, index: u32) -> u64 {
        let block = self.block(index);
        let next = block.next.map(|next| self.block(next)).filter(|next| !next.mapped);
        block.bytes + next.map_or(0, |next| next.bytes)
    }
}
