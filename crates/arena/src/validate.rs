//! Checks a solution in O(n^2). Shares no code with the solver, the heuristics or the bound, not even the test for
//! overlap, so that a mistake there cannot hide here.
//!
//! ```text
//!   offset
//!     ^      +------+
//!     |  +---+XX    |      A clash: shared time *and* shared space. Touching edges are fine, because
//!     |  |   +XX----+      both lifespans and address ranges are half-open.
//!     |  +-----+
//!     +----------------> time
//! ```

use super::problem::{Lifespan, Problem, Solution};
use thiserror::Error;

/// The position of a buffer, for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Its index in the problem.
    pub buffer: usize,
    /// When it is live.
    pub lifespan: Lifespan,
    /// Its first byte.
    pub offset: u64,
    /// One past its last byte; its size counts rounded up to the alignment.
    pub top: u64,
}

/// What is wrong with a solution. Buffers are named by their index in the problem.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Violation {
    /// The problem's alignment is 0.
    #[error("the problem's alignment is 0, expected at least 1 byte")]
    ZeroAlignment,
    /// The numbers of offsets and of buffers differ.
    #[error("the solution has {offsets} offsets for {buffers} buffers")]
    WrongLength {
        /// Offsets in the solution.
        offsets: usize,
        /// Buffers in the problem.
        buffers: usize,
    },
    /// An offset is not a multiple of the alignment.
    #[error("buffer {buffer} is at offset {offset}, which is not a multiple of {alignment}")]
    Misaligned {
        /// The buffer.
        buffer: usize,
        /// Its offset.
        offset: u64,
        /// The alignment that its offset must be a multiple of.
        alignment: u64,
    },
    /// A buffer would end beyond 64 bits.
    #[error("buffer {buffer} of {size} bytes at offset {offset} ends beyond 64 bits")]
    Overflow {
        /// The buffer.
        buffer: usize,
        /// Its bytes, before rounding up.
        size: u64,
        /// Its offset.
        offset: u64,
    },
    /// A buffer ends above the capacity.
    #[error("buffer {buffer} ends at {top}, over the capacity of {capacity} bytes by {}", top - capacity)]
    OverCapacity {
        /// The buffer.
        buffer: usize,
        /// One past its last byte.
        top: u64,
        /// Available bytes.
        capacity: u64,
    },
    /// Two buffers share bytes while both are live.
    #[error(
        "buffers {} and {} clash: {} is live in [{}, {}) at bytes [{}, {}), {} is live in [{}, {}) at bytes [{}, {})",
        .first.buffer, .second.buffer,
        .first.buffer, .first.lifespan.lower, .first.lifespan.upper, .first.offset, .first.top,
        .second.buffer, .second.lifespan.lower, .second.lifespan.upper, .second.offset, .second.top
    )]
    Clash {
        /// The buffer with the lower index.
        first: Placed,
        /// The buffer with the higher index.
        second: Placed,
    },
    /// The solution's peak is not the highest top of its buffers.
    #[error("the solution gives its peak as {said} bytes, but its buffers reach {reached}")]
    WrongPeak {
        /// The peak of the solution.
        said: u64,
        /// The highest top of a buffer.
        reached: u64,
    },
}

/// Checks that `solution` is a packing of `problem` within `capacity` bytes (`None` for any peak).
///
/// Buffers of 0 bytes or with an empty lifespan never clash and do not raise the peak, but their offsets must be
/// aligned too. Takes O(n^2) time.
/// Errors: the first `Violation` found, in the order of the enum.
pub fn validate(problem: &Problem, solution: &Solution, capacity: Option<u64>) -> Result<(), Violation> {
    let placed = place_all(problem, solution)?;

    if let Some(capacity) = capacity {
        for p in &placed {
            if p.top > capacity {
                return Err(Violation::OverCapacity { buffer: p.buffer, top: p.top, capacity });
            }
        }
    }
    for (i, &first) in placed.iter().enumerate() {
        for &second in &placed[i + 1..] {
            let apart_in_time =
                first.lifespan.upper <= second.lifespan.lower || second.lifespan.upper <= first.lifespan.lower;
            let apart_in_space = first.top <= second.offset || second.top <= first.offset;
            if !apart_in_time && !apart_in_space {
                return Err(Violation::Clash { first, second });
            }
        }
    }
    let mut reached = 0;
    for p in &placed {
        reached = reached.max(p.top);
    }
    if solution.peak != reached {
        return Err(Violation::WrongPeak { said: solution.peak, reached });
    }
    Ok(())
}

/// The buffers that occupy memory, with their tops. Errors: everything that can be wrong with a single buffer, except
/// the capacity.
fn place_all(problem: &Problem, solution: &Solution) -> Result<Vec<Placed>, Violation> {
    let alignment = problem.alignment;
    if alignment == 0 {
        return Err(Violation::ZeroAlignment);
    }
    if solution.offsets.len() != problem.buffers.len() {
        return Err(Violation::WrongLength { offsets: solution.offsets.len(), buffers: problem.buffers.len() });
    }
    for (buffer, &offset) in solution.offsets.iter().enumerate() {
        if offset % alignment != 0 {
            return Err(Violation::Misaligned { buffer, offset, alignment });
        }
    }
    let mut placed = Vec::new();
    for (buffer, (b, &offset)) in problem.buffers.iter().zip(&solution.offsets).enumerate() {
        if b.size == 0 || b.lifespan.upper <= b.lifespan.lower {
            continue;
        }
        let units = u128::from(b.size).div_ceil(u128::from(alignment));
        let top = u128::from(offset) + units * u128::from(alignment);
        let Ok(top) = u64::try_from(top) else {
            return Err(Violation::Overflow { buffer, size: b.size, offset });
        };
        placed.push(Placed { buffer, lifespan: b.lifespan, offset, top });
    }
    Ok(placed)
}
