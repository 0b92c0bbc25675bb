//! Lists the allocator's segments like a snapshot does.

use super::{Allocator, BlockId};
use crate::snapshot::{self, BlockState, Segment, StackId};

impl Allocator {
    /// All segments by address; an expandable segment is listed once per mapped range. `state` returns the state and
    /// the stack of a block.
    pub fn segments(&self, state: impl Fn(BlockId) -> (BlockState, StackId)) -> Vec<Segment> {
        let vacant = self.vacant.iter().copied().collect::<std::collections::HashSet<_>>();
        let all = (0..self.blocks.len() as u32).filter(|index| !vacant.contains(index));
        let is_first = |index: &u32| {
            let block = self.block(*index);
            block.mapped && block.previous.is_none_or(|previous| !self.block(previous).mapped)
        };
        let mut segments = all.filter(is_first).map(|index| self.segment(index, &state)).collect::<Vec<_>>();
        segments.sort_by_key(|segment| segment.address);
        segments
    }

    fn segment(&self, first: u32, state: &impl Fn(BlockId) -> (BlockState, StackId)) -> Segment {
        let head = self.block(first);
        let pool = &self.pools[head.pool];
        let mut segment = Segment {
            address: head.address,
            bytes: 0,
            stream: head.stream,
            small: pool.small,
            expandable: head.space.is_some(),
            pool: pool.id,
            blocks: vec![],
            stack: StackId(0),
        };
        let mut next = Some(first);
        while let Some((index, block)) = next.map(|index| (index, self.block(index))).filter(|(_, block)| block.mapped)
        {
            let (state, stack) = state(BlockId(index));
            let (address, bytes, requested) = (block.address, block.bytes, block.requested);
            segment.blocks.push(snapshot::Block { address, bytes, requested, state, stack });
            segment.bytes += bytes;
            next = block.next;
        }
        segment
    }
}
