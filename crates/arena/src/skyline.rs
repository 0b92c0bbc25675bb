//! Builds a packing from the bottom up, always in the deepest valley of the placed buffers.
//!
//! ```text
//!   offset
//!     ^  +----+            +-------+     The deepest valley takes the preferred buffer among those that
//!     |  |    |+--+        |       |     fit between its walls. If none fits, the valley is filled up to
//!     |  |    ||  | valley |       |     its lower wall, and those bytes are lost.
//!     |  |    ||  +--------+       |
//!     +--+----++--+--------+-------+--> column
//! ```

use super::compress::{Compressed, CompressedBuffer};
use std::cmp::Reverse;

/// Which of the buffers that fit into the valley to place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prefer {
    /// The one with the longest lifespan.
    Width,
    /// The one with the largest size.
    Size,
    /// The one with the largest product of size and lifespan.
    Area,
    /// The one that starts first.
    Left,
}

/// Adjacent columns of one height.
#[derive(Debug, Clone, Copy)]
struct Segment {
    lower: u32,
    upper: u32,
    height: u64,
}

/// Fills valleys. Reused between attempts to sum their work.
#[derive(Debug, Default)]
pub(super) struct Skyline {
    /// From left to right; adjacent segments differ in height.
    line: Vec<Segment>,
    /// Number of buffers and segments examined so far.
    pub work: u64,
}

impl Skyline {
    /// Fills `offsets` (one per buffer) and returns the peak.
    pub fn fill(&mut self, problem: &Compressed, prefer: Prefer, offsets: &mut [u64]) -> u64 {
        let mut waiting = sorted(problem, prefer);
        let mut peak = 0;
        self.line = vec![Segment { lower: 0, upper: problem.loads.len() as u32, height: 0 }];
        while !waiting.is_empty() {
            let at = self.deepest();
            let valley = self.line[at];
            let fits = |buffer: &CompressedBuffer| valley.lower <= buffer.lower && buffer.upper <= valley.upper;
            let found = waiting.iter().position(|(buffer, _)| fits(buffer));
            self.work += (self.line.len() + found.unwrap_or(waiting.len())) as u64;
            match found {
                None => self.raise(at),
                Some(found) => {
                    let (buffer, index) = waiting.remove(found);
                    offsets[index] = valley.height;
                    peak = peak.max(valley.height + buffer.size);
                    self.put(at, &buffer);
                }
            }
        }
        peak
    }

    /// The leftmost of the lowest segments.
    fn deepest(&self) -> usize {
        let lowest = self.line.iter().enumerate().min_by_key(|(_, segment)| segment.height);
        lowest.expect("a problem with buffers has columns").0
    }

    /// Raises the segment to its lower neighbor, and joins them.
    fn raise(&mut self, at: usize) {
        let left = at.checked_sub(1).map(|left| self.line[left].height);
        let right = self.line.get(at + 1).map(|right| right.height);
        let walls = left.into_iter().chain(right);
        self.line[at].height = walls.min().expect("a buffer fits between the walls of the whole problem");
        self.join(at.saturating_sub(1));
    }

    /// Places a buffer on the segment, which may split into three.
    fn put(&mut self, at: usize, buffer: &CompressedBuffer) {
        let Segment { lower, upper, height } = self.line[at];
        let parts = [
            Segment { lower, upper: buffer.lower, height },
            Segment { lower: buffer.lower, upper: buffer.upper, height: height + buffer.size },
            Segment { lower: buffer.upper, upper, height },
        ];
        self.line.splice(at..=at, parts.into_iter().filter(|part| part.lower < part.upper));
        self.join(at.saturating_sub(1));
    }

    /// Joins adjacent segments of equal height, among the few from `from` on.
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

/// The buffers with their indices, the most preferred first.
fn sorted(problem: &Compressed, prefer: Prefer) -> Vec<(CompressedBuffer, usize)> {
    let key = |b: &CompressedBuffer| match prefer {
        Prefer::Width => (b.width(), b.size),
        Prefer::Size => (b.size, b.width()),
        Prefer::Area => (b.size.saturating_mul(b.width()), b.size),
        Prefer::Left => (u64::from(u32::MAX - b.lower), b.width()),
    };
    let mut buffers: Vec<(CompressedBuffer, usize)> = problem.buffers.iter().copied().zip(0..).collect();
    buffers.sort_by_key(|(buffer, _)| Reverse(key(buffer)));
    buffers
}
