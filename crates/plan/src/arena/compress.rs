//! The problem as the packers see it: time cut into the few columns that matter, sizes counted in
//! units of the alignment, buffers that take no room left out.
//!
//! ```text
//!   +---+ +--------+         A column is a moment at which no further buffer can be added to those
//!   | a | |   c    |         that are live (a maximal clique of the interval graph). Any two buffers
//!   +---+-+----+---+---+     that overlap share a column, and the largest load is that of a column,
//!     |   b    |  |  d |     so nothing is lost: here 8 starts and ends make 3 columns.
//!     +--------+  +----+
//!      ^   ^       ^
//!      0   1       2         a = [0, 1), b = [0, 2), c = [1, 3), d = [2, 3)
//! ```

use super::problem::{Buffer, Problem, Solution};

/// A buffer that takes room, in columns and units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    /// Its first column.
    pub lower: u32,
    /// One past its last column; never equal to `lower`.
    pub upper: u32,
    /// Its size in units of the alignment, at least 1.
    pub size: u64,
}

impl Block {
    /// Columns that it is live in.
    pub fn width(&self) -> u64 {
        u64::from(self.upper - self.lower)
    }

    /// The range of its columns, to index with.
    pub fn columns(&self) -> std::ops::Range<usize> {
        self.lower as usize..self.upper as usize
    }
}

/// A problem in columns and units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Compressed {
    /// Those buffers that take room, in the problem's order.
    pub blocks: Vec<Block>,
    /// `buffers[i]` is the index in the problem of `blocks[i]`.
    pub buffers: Vec<usize>,
    /// Units live in each column.
    pub loads: Vec<u64>,
    /// Bytes in a unit.
    pub alignment: u64,
    /// Buffers in the problem, with those that take no room.
    pub len: usize,
}

impl Compressed {
    /// Panics where the problem has no `total_bytes`.
    pub fn new(problem: &Problem) -> Self {
        problem.assert_countable();
        let buffers: Vec<usize> = (0..problem.buffers.len()).filter(|&i| problem.buffers[i].takes_room()).collect();

        // (time, starts?, block): at one time ends sort before starts, for lifespans are half-open.
        let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * buffers.len());
        for (block, &i) in buffers.iter().enumerate() {
            let lifespan = problem.buffers[i].lifespan;
            events.push((lifespan.lower, true, block));
            events.push((lifespan.upper, false, block));
        }
        events.sort_unstable();

        let size = |i: usize| problem.buffers[i].size.div_ceil(problem.alignment);
        let mut blocks: Vec<Block> = buffers.iter().map(|&i| Block { lower: 0, upper: 0, size: size(i) }).collect();
        let mut loads: Vec<u64> = Vec::new();
        let mut load = 0;
        let mut last_was_start = false;
        for (_, starts, block) in events {
            let columns = loads.len() as u32;
            if starts {
                blocks[block].lower = columns;
                load += blocks[block].size;
            } else {
                // The live set grew up to here and shrinks now: it is a maximal one.
                if last_was_start {
                    loads.push(load);
                }
                blocks[block].upper = loads.len() as u32;
                load -= blocks[block].size;
            }
            last_was_start = starts;
        }
        Self { blocks, buffers, loads, alignment: problem.alignment, len: problem.buffers.len() }
    }

    /// The problem of some of the blocks alone; its `buffers` are indices of blocks here.
    pub fn part(&self, blocks: &[u32]) -> Self {
        let buffer = |&i: &u32| {
            let block = self.blocks[i as usize];
            Buffer::new(block.lower.into(), block.upper.into(), block.size)
        };
        let part = Self::new(&Problem { buffers: blocks.iter().map(buffer).collect(), alignment: 1 });
        Self { buffers: blocks.iter().map(|&i| i as usize).collect(), ..part }
    }

    /// The largest load of a column: no packing is lower.
    pub fn bound(&self) -> u64 {
        self.loads.iter().copied().max().unwrap_or(0)
    }

    /// The solution in bytes, for offsets of the blocks in units.
    pub fn solution(&self, offsets: &[u64]) -> Solution {
        let mut solution = Solution { offsets: vec![0; self.len], peak: self.peak(offsets) * self.alignment };
        for (&buffer, &offset) in self.buffers.iter().zip(offsets) {
            solution.offsets[buffer] = offset * self.alignment;
        }
        solution
    }

    /// The highest top of a block, in units.
    pub fn peak(&self, offsets: &[u64]) -> u64 {
        self.blocks.iter().zip(offsets).map(|(block, offset)| offset + block.size).max().unwrap_or(0)
    }
}
