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

/// Lays all blocks in an order. Kept between orders to spare the allocation.
#[derive(Default)]
pub(super) struct Placer {
    /// Sorted by offset.
    laid: Vec<Laid>,
    /// Blocks that were looked at so far.
    pub work: u64,
}

impl Placer {
    /// Fills `offsets` (one for each block) in the given order; returns the peak.
    pub fn place(&mut self, blocks: &[Block], order: &[u32], fit: Fit, offsets: &mut [u64]) -> u64 {
        self.laid.clear();
        self.add(blocks, order, fit, offsets)
    }

    /// Takes blocks as lying already, at these offsets, and nothing else.
    pub fn start(&mut self, blocks: &[Block], lying: impl Iterator<Item = (usize, u64)>) {
        self.laid = lying.map(|(index, offset)| Laid::new(&blocks[index], offset)).collect();
        self.laid.sort_by_key(|laid| laid.offset);
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
            let at = self.laid.partition_point(|laid| laid.offset < offset);
            self.laid.insert(at, Laid::new(&block, offset));
            offsets[index as usize] = offset;
            peak = peak.max(offset + block.size);
        }
        peak
    }

    /// The bottom of the lowest gap.
    fn lowest(&mut self, block: &Block) -> u64 {
        let mut floor = 0;
        for (seen, laid) in self.laid.iter().enumerate() {
            if laid.lower < block.upper && block.lower < laid.upper {
                if laid.offset >= floor + block.size {
                    self.work += seen as u64;
                    return floor;
                }
                floor = floor.max(laid.top);
            }
        }
        self.work += self.laid.len() as u64;
        floor
    }

    /// The bottom of the gap that is filled best; on top of everything where there is none.
    fn best(&mut self, block: &Block) -> u64 {
        let mut floor = 0;
        let mut best = None;
        let mut best_gap = u64::MAX;
        for laid in &self.laid {
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
        self.work += self.laid.len() as u64;
        best.unwrap_or(floor)
    }
}
