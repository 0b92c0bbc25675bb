//! The problem in the form that the packers use: time reduced to the columns that matter, sizes in units of the
//! alignment, and without buffers that occupy no memory.
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

/// A buffer that occupies memory, in columns and units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CompressedBuffer {
    /// Its first column.
    pub lower: u32,
    /// One past its last column; never equal to `lower`.
    pub upper: u32,
    /// Its size in units of the alignment, at least 1.
    pub size: u64,
}

impl CompressedBuffer {
    /// Number of columns in which it is live.
    pub fn width(&self) -> u64 {
        u64::from(self.upper - self.lower)
    }

    /// The range of its columns, for indexing.
    pub fn columns(&self) -> std::ops::Range<usize> {
        self.lower as usize..self.upper as usize
    }
}

/// A problem in columns and units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Compressed {
    /// The buffers that occupy memory, in the problem's order.
    pub buffers: Vec<CompressedBuffer>,
    /// `indices[i]` is the index in the problem of `buffers[i]`.
    pub indices: Vec<usize>,
    /// Units live in each column.
    pub loads: Vec<u64>,
    /// Bytes in a unit.
    pub alignment: u64,
    /// Number of buffers in the problem, including those that occupy no memory.
    pub len: usize,
}

impl Compressed {
    /// Panics if the problem has no `total_bytes`.
    pub fn new(problem: &Problem) -> Self {
        problem.assert_countable();
        let indices: Vec<usize> = (0..problem.buffers.len()).filter(|&i| problem.buffers[i].takes_room()).collect();

        // (time, starts?, buffer). At equal times ends sort before starts, because lifespans are half-open.
        let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * indices.len());
        for (buffer, &i) in indices.iter().enumerate() {
            let lifespan = problem.buffers[i].lifespan;
            events.push((lifespan.lower, true, buffer));
            events.push((lifespan.upper, false, buffer));
        }
        events.sort_unstable();

        let size = |i: usize| problem.buffers[i].size.div_ceil(problem.alignment);
        let mut buffers: Vec<CompressedBuffer> =
            indices.iter().map(|&i| CompressedBuffer { lower: 0, upper: 0, size: size(i) }).collect();
        let mut loads: Vec<u64> = Vec::new();
        let mut load = 0;
        let mut last_was_start = false;
        for (_, starts, buffer) in events {
            let columns = loads.len() as u32;
            if starts {
                buffers[buffer].lower = columns;
                load += buffers[buffer].size;
            } else {
                // The live set grew until here and shrinks now, so it is maximal.
                if last_was_start {
                    loads.push(load);
                }
                buffers[buffer].upper = loads.len() as u32;
                load -= buffers[buffer].size;
            }
            last_was_start = starts;
        }
        Self { buffers, indices, loads, alignment: problem.alignment, len: problem.buffers.len() }
    }

    /// The problem of some of the buffers only; its `indices` refer to the buffers of `self`.
    pub fn part(&self, indices: &[u32]) -> Self {
        let whole = |&i: &u32| {
            let buffer = self.buffers[i as usize];
            Buffer::new(buffer.lower.into(), buffer.upper.into(), buffer.size)
        };
        let part = Self::new(&Problem { buffers: indices.iter().map(whole).collect(), alignment: 1 });
        Self { indices: indices.iter().map(|&i| i as usize).collect(), ..part }
    }

    /// The largest load of a column. Every packing is at least this high.
    pub fn bound(&self) -> u64 {
        self.loads.iter().copied().max().unwrap_or(0)
    }

    /// The solution in bytes, from offsets in units.
    pub fn solution(&self, offsets: &[u64]) -> Solution {
        let mut solution = Solution { offsets: vec![0; self.len], peak: self.peak(offsets) * self.alignment };
        for (&index, &offset) in self.indices.iter().zip(offsets) {
            solution.offsets[index] = offset * self.alignment;
        }
        solution
    }

    /// The highest top of a buffer, in units.
    pub fn peak(&self, offsets: &[u64]) -> u64 {
        self.buffers.iter().zip(offsets).map(|(buffer, offset)| offset + buffer.size).max().unwrap_or(0)
    }
}
