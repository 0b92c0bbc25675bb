//! Leaves out buffers that fit wherever the others are, so that the hard part of a problem becomes small.
//!
//! ```text
//!   capacity -------------------------          x overlaps 2 buffers, so the free bytes are in at most 3 gaps.
//!              gap     +---------+              One gap has at least a third of them: if that is at least
//!     +------------+   |    b    |              the size of x, then x can wait until a and b are placed.
//!     |     a      |   +---------+
//!     +------------+                            Buffers that overlap x then have one neighbor less, and may be
//!              gap  +--x--+  gap                the next to leave out.
//! ```

use super::compress::{Compressed, CompressedBuffer};
use super::place::{Fit, Placer};

/// A problem without the buffers that fit under a capacity in every case.
pub(super) struct Peeled {
    /// The remaining problem. Its `indices` refer to the buffers of the whole problem.
    pub core: Compressed,
    /// The buffers that were left out, in the order in which they can be placed.
    left_out: Vec<u32>,
}

impl Peeled {
    /// Leaves out every buffer that fits under `capacity` (in units), and so under any larger one.
    pub fn new(problem: &Compressed, capacity: u64) -> Self {
        let mut rest: Vec<u32> = (0..problem.buffers.len() as u32).collect();
        let mut left_out = Vec::new();
        loop {
            let neighbors = Neighbors::new(problem, &rest);
            let (fits, still): (Vec<u32>, Vec<u32>) =
                rest.iter().partition(|&&i| neighbors.leave_room(&problem.buffers[i as usize], capacity));
            rest = still;
            if fits.is_empty() {
                break;
            }
            left_out.extend(fits);
        }
        left_out.reverse();
        let core = problem.part(&rest);
        Self { core, left_out }
    }

    /// Completes a packing of the core. The result is under the capacity, or no higher than the core's.
    pub fn complete(&self, problem: &Compressed, core: &[u64]) -> Vec<u64> {
        let mut offsets = vec![0; problem.buffers.len()];
        for (&buffer, &offset) in self.core.indices.iter().zip(core) {
            offsets[buffer] = offset;
        }
        let mut placer = Placer::default();
        placer.start(&problem.buffers, self.core.indices.iter().map(|&buffer| (buffer, offsets[buffer])));
        placer.add(&problem.buffers, &self.left_out, Fit::Lowest, &mut offsets);
        offsets
    }
}

/// For each column, the number of buffers to its left and to its right, and their units.
struct Neighbors {
    /// Count and units of the buffers that end at this column or before.
    ended: Vec<(u64, u64)>,
    /// Count and units of the buffers that start before this column.
    started: Vec<(u64, u64)>,
}

impl Neighbors {
    fn new(problem: &Compressed, buffers: &[u32]) -> Self {
        let mut ended = vec![(0, 0); problem.loads.len() + 1];
        let mut started = ended.clone();
        for &i in buffers {
            let buffer = problem.buffers[i as usize];
            for (sums, column) in [(&mut ended, buffer.upper), (&mut started, buffer.lower + 1)] {
                let (count, units) = &mut sums[column as usize];
                *count += 1;
                *units += buffer.size;
            }
        }
        for sums in [&mut ended, &mut started] {
            for c in 1..sums.len() {
                sums[c] = (sums[c - 1].0 + sums[c].0, sums[c - 1].1 + sums[c].1);
            }
        }
        Self { ended, started }
    }

    /// Whether a gap for `buffer` remains however the buffers that share a column with it are placed.
    fn leave_room(&self, buffer: &CompressedBuffer, capacity: u64) -> bool {
        let (started, ended) = (self.started[buffer.upper as usize], self.ended[buffer.lower as usize]);
        let (gaps, units) = (started.0 - ended.0, started.1 - ended.1 - buffer.size);
        let in_pieces = gaps.checked_mul(buffer.size - 1).and_then(|bytes| bytes.checked_add(units));
        in_pieces.is_some_and(|taken| taken < capacity)
    }
}
