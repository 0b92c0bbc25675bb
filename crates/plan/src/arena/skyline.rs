//! Builds a packing from the bottom up, always in the deepest valley of what lies already.
//!
//! ```text
//!   offset
//!     ^  +----+            +-------+     The deepest valley takes the preferred block among those that
//!     |  |    |+--+        |       |     fit between its walls. Where none fits, it is filled up to its
//!     |  |    ||  | valley |       |     lower wall, and those bytes are lost.
//!     |  |    ||  +--------+       |
//!     +--+----++--+--------+-------+--> column
//! ```

use super::compress::{Block, Compressed};
use std::cmp::Reverse;

/// Which block is taken among those that fit into the valley.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prefer {
    /// The longest.
    Width,
    /// The largest.
    Size,
    /// The largest product of both.
    Area,
    /// The one that starts first.
    Left,
}

/// Columns of one height.
#[derive(Debug, Clone, Copy)]
struct Segment {
    lower: u32,
    upper: u32,
    height: u64,
}

/// Fills valleys. Kept between attempts to sum up their work.
#[derive(Debug, Default)]
pub(super) struct Skyline {
    /// From left to right; neighbours differ in height.
    line: Vec<Segment>,
    /// Blocks and segments that were looked at so far.
    pub work: u64,
}

impl Skyline {
    /// Fills `offsets` (one for each block); returns the peak.
    pub fn fill(&mut self, problem: &Compressed, prefer: Prefer, offsets: &mut [u64]) -> u64 {
        let mut waiting = sorted(problem, prefer);
        let mut peak = 0;
        self.line = vec![Segment { lower: 0, upper: problem.loads.len() as u32, height: 0 }];
        while !waiting.is_empty() {
            let at = self.deepest();
            let valley = self.line[at];
            let fits = |block: &Block| valley.lower <= block.lower && block.upper <= valley.upper;
            let found = waiting.iter().position(|(block, _)| fits(block));
            self.work += (self.line.len() + found.unwrap_or(waiting.len())) as u64;
            match found {
                None => self.raise(at),
                Some(found) => {
                    let (block, index) = waiting.remove(found);
                    offsets[index] = valley.height;
                    peak = peak.max(valley.height + block.size);
                    self.put(at, &block);
                }
            }
        }
        peak
    }

    /// The leftmost of the lowest segments.
    fn deepest(&self) -> usize {
        let lowest = self.line.iter().enumerate().min_by_key(|(_, segment)| segment.height);
        lowest.expect("there are columns where there are blocks").0
    }

    /// Fills the segment up to its lower neighbour, and joins them.
    fn raise(&mut self, at: usize) {
        let left = at.checked_sub(1).map(|left| self.line[left].height);
        let right = self.line.get(at + 1).map(|right| right.height);
        let walls = left.into_iter().chain(right);
        self.line[at].height = walls.min().expect("a block fits between the walls of the whole problem");
        self.join(at.saturating_sub(1));
    }

    /// Puts a block onto the segment, which it may split into three.
    fn put(&mut self, at: usize, block: &Block) {
        let Segment { lower, upper, height } = self.line[at];
        let parts = [
            Segment { lower, upper: block.lower, height },
            Segment { lower: block.lower, upper: block.upper, height: height + block.size },
            Segment { lower: block.upper, upper, height },
        ];
        self.line.splice(at..=at, parts.into_iter().filter(|part| part.lower < part.upper));
        self.join(at.saturating_sub(1));
    }

    /// Joins neighbours of equal height among the few segments from `from` on.
    fn join(&mut self, from: usize) {
        let mut at = from;
        while at + 1 < self.line.len() && at < from + 4 {
            if self.line[at].height == self.line[at + 1].height {
                self.line[at].upper = self.line[at + 1].upper;
                self.line.remove(at + 1);
            } else {
                at += 1;
            }
        }
    }
}

/// The blocks with their indices, most preferred first.
fn sorted(problem: &Compressed, prefer: Prefer) -> Vec<(Block, usize)> {
    let key = |b: &Block| match prefer {
        Prefer::Width => (b.width(), b.size),
        Prefer::Size => (b.size, b.width()),
        Prefer::Area => (b.size.saturating_mul(b.width()), b.size),
        Prefer::Left => (u64::from(u32::MAX - b.lower), b.width()),
    };
    let mut blocks: Vec<(Block, usize)> = problem.blocks.iter().copied().zip(0..).collect();
    blocks.sort_by_key(|(block, _)| Reverse(key(block)));
    blocks
}
