//! A packing problem and its solution: plain data, no algorithm.
//!
//! ```text
//!   offset
//!     ^
//!     |     +-------+            A buffer is a rectangle: its lifespan is given (it cannot move
//!   8 |     |   C   |            left or right), its size is given, the packer chooses its offset.
//!     |  +--+-----+-+----+       Two rectangles may share time or space, never both.
//!   5 |  |   B    |      |
//!     |  +--------+  D   |       peak = 8: the highest top of any buffer.
//!   2 |    +-----++      |
//!     |    |  A  ||      |
//!   0 +----+-----++------+---> time
//! ```
//!
//! Next: `bound.rs` (a lower bound of the peak), `pack.rs` and `solver.rs` (which choose the offsets), `validate.rs`
//! (which checks them).

use serde::{Deserialize, Serialize};

/// The largest accepted sum of sizes: 2^63 - 1, so that rounding up to an alignment stays within 64 bits and tools with
/// signed offsets can read the output.
pub const MAX_TOTAL_BYTES: u64 = i64::MAX as u64;

/// The half-open time `lower <= t < upper` during which a buffer holds its bytes.
///
/// The caller chooses the unit of time, for example the index of a step in a schedule. An empty lifespan (`lower >=
/// upper`) is allowed: such a buffer occupies no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lifespan {
    /// The first instant at which the buffer is live.
    pub lower: u64,
    /// The first instant at which it is no longer live.
    pub upper: u64,
}

/// Memory that keeps one offset for its whole lifespan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Buffer {
    /// When it is live.
    pub lifespan: Lifespan,
    /// Bytes, before rounding up to the problem's alignment. A buffer of 0 bytes occupies no memory.
    pub size: u64,
}

/// Buffers to pack in one arena with a small peak.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The buffers to pack. Solutions and errors refer to a buffer by its index here.
    pub buffers: Vec<Buffer>,
    /// Every offset must be a multiple of this (bytes, at least 1), and sizes count rounded up to it.
    pub alignment: u64,
}

/// One offset for every buffer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Solution {
    /// `offsets[i]` is the first byte of `problem.buffers[i]`. Empty buffers are at 0.
    pub offsets: Vec<u64>,
    /// Bytes of the arena: the largest `offset + size rounded up` of all buffers that occupy memory.
    pub peak: u64,
}

impl Lifespan {
    /// The lifespan `lower <= t < upper`.
    pub const fn new(lower: u64, upper: u64) -> Self {
        Self { lower, upper }
    }
}

impl Buffer {
    /// `size` bytes that are live for `lower <= t < upper`.
    pub const fn new(lower: u64, upper: u64, size: u64) -> Self {
        Self { lifespan: Lifespan::new(lower, upper), size }
    }

    /// Whether it holds at least one byte for at least one instant.
    pub const fn takes_room(&self) -> bool {
        self.size > 0 && self.lifespan.lower < self.lifespan.upper
    }
}

impl Problem {
    /// The sum of all buffers' bytes, each rounded up to the alignment; `None` if it exceeds 64 bits.
    ///
    /// `pack`, `solve` and `lower_bound` panic on a problem without this total, so code that reads sizes from outside
    /// checks it first (as `read_csv` does).
    pub fn total_bytes(&self) -> Option<u64> {
        let rounded = |buffer: &Buffer| buffer.size.checked_next_multiple_of(self.alignment);
        self.buffers.iter().try_fold(0u64, |sum, buffer| sum.checked_add(rounded(buffer)?))
    }

    /// Panics unless the alignment is at least 1 and `total_bytes` fits in 64 bits, so that no later sum of sizes
    /// overflows.
    pub(super) fn assert_countable(&self) {
        assert!(self.alignment > 0, "an arena's alignment must be at least 1 byte");
        assert!(
            self.total_bytes().is_some(),
            "{} buffers aligned to {} bytes add up to more than 64 bits",
            self.buffers.len(),
            self.alignment
        );
    }
}
