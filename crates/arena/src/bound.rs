//! A lower bound of the peak: the largest sum of live bytes. It gives no offsets.
//!
//! ```text
//!   live bytes
//!     ^        +--+
//!     |     +--+  |         No packing is lower than the tallest column, because all the buffers in
//!     |  +--+     +----+    must be next to each other at that time. Some need more: fragments.
//!     +--+-------------+--> time
//!              ^ at
//! ```

use super::problem::Problem;

/// The largest sum of live bytes, and the first time it occurs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LowerBound {
    /// A lower bound of every peak; sizes count rounded up to the alignment.
    pub bytes: u64,
    /// The earliest time at which this many bytes are live; 0 if no buffer is ever live.
    pub at: u64,
}

/// The largest sum of live bytes of `problem`, by a sweep over its starts and ends.
///
/// Panics if the problem has no `total_bytes`, or an alignment of 0.
pub fn lower_bound(problem: &Problem) -> LowerBound {
    problem.assert_countable();
    // (time, starts?, bytes). At equal times ends sort before starts, because lifespans are half-open.
    let mut events: Vec<(u64, bool, u64)> = Vec::with_capacity(2 * problem.buffers.len());
    for buffer in problem.buffers.iter().filter(|buffer| buffer.takes_room()) {
        let bytes = buffer.size.next_multiple_of(problem.alignment);
        events.push((buffer.lifespan.lower, true, bytes));
        events.push((buffer.lifespan.upper, false, bytes));
    }
    events.sort_unstable();

    let mut live = 0;
    let mut bound = LowerBound { bytes: 0, at: 0 };
    for (time, starts, bytes) in events {
        if !starts {
            live -= bytes;
            continue;
        }
        live += bytes;
        if live > bound.bytes {
            bound = LowerBound { bytes: live, at: time };
        }
    }
    bound
}
