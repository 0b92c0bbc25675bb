//! Restores an allocator from a recorded state.

use super::block::{Block, BlockId, Space};
use super::{Allocator, SMALL_SEGMENT};
use crate::snapshot::{AllocatorSettings, PoolId};

/// A mapped range of addresses: a segment, or a part of an expandable one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartRange {
    /// Its address.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Its stream.
    pub stream: u64,
    /// Whether it belongs to the small pool.
    pub small: bool,
    /// Its pool.
    pub pool: PoolId,
    /// For an expandable segment, its full address range.
    pub space: Option<(u64, u64)>,
    /// Its blocks in use, by address.
    pub used: Vec<Part>,
}

/// A block in use at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Its address.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Size requested by the program.
    pub requested: u64,
}

impl Allocator {
    /// An allocator with these ranges. The ranges, and the blocks in use within each, are sorted by address and do not
    /// overlap. Returns the blocks in use, in order.
    pub fn restore(settings: AllocatorSettings, ranges: &[StartRange]) -> (Self, Vec<BlockId>) {
        // Garbage collection implies a limit, but its value is not recorded.
        let allowed = (settings.garbage_collection_threshold > 0.0).then_some(u64::MAX);
        let mut allocator = Self::new(settings, allowed);
        let mut in_use = vec![];
        let mut last_of_space: Option<((u64, u64), u32, u32)> = None;
        for range in ranges {
            let pool = allocator.pool(range.pool, range.small);
            let (space, mut previous) = match (range.space, last_of_space) {
                (Some(space), Some((known, id, last))) if space == known => (Some(id), Some(last)),
                (space, last) => {
                    allocator.end_space(last);
                    let unit = if range.small { SMALL_SEGMENT } else { allocator.settings.large_segment_bytes };
                    (space.map(|(address, _)| allocator.add_space(Space { address, unit })), None)
                }
            };
            let first = previous.map_or(range.space.map_or(range.address, |space| space.0), |last| allocator.end(last));
            let block = Block { space, ..Block::free(range.address, range.bytes, range.stream, pool) };
            if first < range.address {
                let bytes = range.address - first;
                previous =
                    Some(allocator.append(previous, Block { address: first, bytes, mapped: false, ..block.clone() }));
            }
            let mut next = range.address;
            for part in &range.used {
                if next < part.address {
                    let bytes = part.address - next;
                    previous = Some(allocator.append(previous, Block { address: next, bytes, ..block.clone() }));
                }
                let Part { address, bytes, requested } = *part;
                let used = Block { address, bytes, requested, in_use: true, ..block.clone() };
                previous = Some(allocator.append(previous, used));
                in_use.extend(previous.map(BlockId));
                (allocator.in_use, allocator.requested) = (allocator.in_use + bytes, allocator.requested + requested);
                next = address + bytes;
            }
            let end = range.address + range.bytes;
            if next < end {
                previous = Some(allocator.append(previous, Block { address: next, bytes: end - next, ..block }));
            }
            allocator.reserved += range.bytes;
            last_of_space = range.space.zip(space).zip(previous).map(|((known, id), last)| (known, id, last));
        }
        allocator.end_space(last_of_space);
        (allocator, in_use)
    }

    /// Appends a block after `previous`, and to its list unless it is in use; merges it with a free block before it.
    fn append(&mut self, previous: Option<u32>, block: Block) -> u32 {
        let in_use = block.in_use;
        let index = self.new_block(Block { previous, next: None, ..block });
        if let Some(previous) = previous {
            self.block_mut(previous).next = Some(index);
        }
        if !in_use {
            self.merge(index, previous);
            self.insert_free(index);
        }
        index
    }

    /// Adds the unmapped addresses after the last range of an expandable segment.
    fn end_space(&mut self, last: Option<((u64, u64), u32, u32)>) {
        let Some(((address, bytes), _, last)) = last else { return };
        let (begin, end) = (self.end(last), address + bytes);
        if begin < end {
            let block = self.block(last).clone();
            let rest =
                Block { address: begin, bytes: end - begin, mapped: false, in_use: false, requested: 0, ..block };
            self.append(Some(last), rest);
        }
    }

    fn end(&self, index: u32) -> u64 {
        self.block(index).address + self.block(index).bytes
    }
}
