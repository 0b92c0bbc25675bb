//! Lays blocks one after the other into the gaps between those that lie already.
//!
//! ```text
//!   offset         which gap?
//!     ^  +-------------+            Fit::Lowest: the lowest gap that is high enough.
//!     |  |             |            Fit::Best: the gap that is filled best, the lowest of those.
//!     |  +-------------+
//!     |     gap 2                   Only blocks that share a column with the new one make gaps.
//!     |      +-----+                They are kept in the order of their offsets, so that one walk
//!     |      |     |                upwards meets every gap.
//!     |  +---+-----+
//!     |  |   | gap 1
//!     +--+---+---------> column
//! ```

use super::compress::Block;
use std::ops::RangeInclusive;

/// Which of the gaps that are high enough takes a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// The lowest one.
    Lowest,
    /// The one that is filled best; the lowest of those.
    Best,
}

/// A block that lies already.
#[derive(Clone, Copy)]
struct Laid {
    offset: u64,
    top: u64,
    lower: u32,
    upper: u32,
}

impl Laid {
    fn new(block: &Block, offset: u64) -> Self {
        Self { offset, top: offset + block.size, lower: block.lower, upper: block.upper }
    }
}

/// Time is cut into so many stretches, each of which knows what lies in it: most blocks live in a single one, and then
/// need not walk past all others.
const STRETCHES: u32 = 16;

/// Lays all blocks in an order. Kept between orders to spare the allocation.
#[derive(Default)]
pub(super) struct Placer {
    /// Sorted by offset.
    laid: Vec<Laid>,
    /// Those of them that are live in each stretch, sorted as well.
    stretches: Vec<Vec<Laid>>,
    columns_per_stretch: u32,
    /// Blocks that were looked at so far.
    pub work: u64,
}

impl Placer {
    /// Fills `offsets` (one for each block) in the given order; returns the peak.
    pub fn place(&mut self, blocks: &[Block], order: &[u32], fit: Fit, offsets: &mut [u64]) -> u64 {
        self.start(blocks, std::iter::empty());
        self.add(blocks, order, fit, offsets)
    }

    /// Takes blocks as lying already, at these offsets, and nothing else.
    pub fn start(&mut self, blocks: &[Block], lying: impl Iterator<Item = (usize, u64)>) {
        let columns = blocks.iter().map(|block| block.upper).max().unwrap_or(0);
        self.columns_per_stretch = columns.div_ceil(STRETCHES).max(1);
        self.laid.clear();
        self.stretches.resize_with(STRETCHES as usize, Vec::new);
        self.stretches.iter_mut().for_each(Vec::clear);
        for (index, offset) in lying {
            self.lay(Laid::new(&blocks[index], offset));
        }
    }

    /// Lays more blocks, as `place` does.
    pub fn add(&mut self, blocks: &[Block], order: &[u32], fit: Fit, offsets: &mut [u64]) -> u64 {
        let mut peak = 0;
        for &index in order {
            let block = blocks[index as usize];
            let offset = match fit {
                Fit::Lowest => self.lowest(&block),
                Fit::Best => self.best(&block),
            };
            self.lay(Laid::new(&block, offset));
            offsets[index as usize] = offset;
            peak = peak.max(offset + block.size);
        }
        peak
    }

    fn lay(&mut self, new: Laid) {
        let stretches = self.stretches_of(new.lower, new.upper);
        for laid in self.stretches[stretches].iter_mut().chain([&mut self.laid]) {
            let at = laid.partition_point(|laid| laid.offset < new.offset);
            laid.insert(at, new);
        }
    }

    fn stretches_of(&self, lower: u32, upper: u32) -> RangeInclusive<usize> {
        (lower / self.columns_per_stretch) as usize..=((upper - 1) / self.columns_per_stretch) as usize
    }

    /// Everything that a block may meet, and more.
    fn near(&self, block: &Block) -> &[Laid] {
        let stretches = self.stretches_of(block.lower, block.upper);
        if stretches.start() == stretches.end() { &self.stretches[*stretches.start()] } else { &self.laid }
    }

    /// The bottom of the lowest gap.
    fn lowest(&mut self, block: &Block) -> u64 {
        let mut floor = 0;
        let mut seen = 0;
        for laid in self.near(block) {
            if laid.lower < block.upper && block.lower < laid.upper {
                if laid.offset >= floor + block.size {
                    break;
                }
                floor = floor.max(laid.top);
            }
            seen += 1;
        }
        self.work += seen;
        floor
    }

    /// The bottom of the gap that is filled best; on top of everything where there is none.
    fn best(&mut self, block: &Block) -> u64 {
        let mut floor = 0;
        let mut best = None;
        let mut best_gap = u64::MAX;
        let near = self.near(block);
        for laid in near {
            if laid.lower < block.upper && block.lower < laid.upper {
                if laid.offset > floor {
                    let gap = laid.offset - floor;
                    if gap >= block.size && gap < best_gap {
                        (best, best_gap) = (Some(floor), gap);
                    }
                }
                floor = floor.max(laid.top);
            }
        }
        self.work += near.len() as u64;
        best.unwrap_or(floor)
    }
}
