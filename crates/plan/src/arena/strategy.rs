//! The order of the exact search: which cell of the packing it decides next, and which block it tries
//! there first. Every strategy searches the same space; their times differ by factors of thousands from
//! problem to problem, so `solver.rs` runs many of them in turn.
//!
//! ```text
//!          |  a  |     |
//!     +----+  b  +-----+----+      A valley: neighbouring columns of one floor between higher walls.
//!     |    |  |  |     |    |      Some column of some valley is decided next; here at column 1, one
//!     +    +--+--+-----+    +      of the blocks a and b lies on the floor, or nothing does and the
//!     |    |* valley   |    |      space at * is lost.
//! ```

use super::columns::{Columns, fingerprint};
use std::cmp::Reverse;
use std::ops::Range;

/// Which column of a valley is decided first. But for `Fewest`, one without a choice goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// The one with the fewest choices.
    Fewest,
    /// The lowest.
    Lowest,
    /// The one with the least space to lose.
    Tightest,
    /// In the narrowest valley.
    Narrowest,
    /// A low one with few choices.
    FewestLow,
    /// The one with the most bytes waiting.
    Fullest,
}

/// Which block is tried first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taste {
    /// The longest lifespan.
    Width,
    /// The largest.
    Size,
    /// The largest product of both.
    Area,
    /// Any.
    Random,
}

/// A way through the search space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Strategy {
    pub rule: Rule,
    pub taste: Taste,
    /// Decides between equals.
    pub seed: u64,
}

impl Strategy {
    /// The column of `range` (a component) that is decided next.
    pub fn choose(&self, packing: &Columns, range: Range<usize>, capacity: u64) -> usize {
        let columns = &packing.columns;
        let mut best = (u64::MAX, u64::MAX, u64::MAX);
        let mut chosen = range.start;
        let mut lower = range.start;
        while lower < range.end {
            let floor = columns[lower].floor;
            let width = columns[lower..range.end].iter().take_while(|column| column.floor == floor).count();
            let upper = lower + width;
            let walled_left = lower == range.start || columns[lower - 1].floor > floor;
            let walled_right = upper == range.end || columns[upper].floor > floor;
            if walled_left && walled_right {
                for (c, column) in columns.iter().enumerate().take(upper).skip(lower) {
                    let slack = capacity - floor - column.load;
                    let least_loss = (column.next - floor).min(packing.smallest_beside[c]);
                    let choices = u64::from(column.tight) + u64::from(least_loss <= slack);
                    let score = match self.rule {
                        Rule::Fewest => (choices, 0),
                        _ if choices <= 1 => (0, 0),
                        Rule::Lowest => (1 + floor, choices),
                        Rule::Tightest => (1 + slack, choices),
                        Rule::Narrowest => (width as u64, choices),
                        Rule::FewestLow => (choices * (1 + 50 * floor / capacity), 0),
                        Rule::Fullest => (u64::MAX - column.load, 0),
                    };
                    let score = (score.0, score.1, fingerprint(self.seed ^ c as u64));
                    if score < best {
                        best = score;
                        chosen = c;
                    }
                }
            }
            lower = upper;
        }
        chosen
    }

    /// Sorts the blocks that could lie at a place, and leaves one of each set of twins.
    pub fn sort(&self, packing: &Columns, candidates: &mut Vec<u32>, from: usize) {
        let blocks = &packing.problem.blocks;
        candidates[from..].sort_unstable_by_key(|&i| {
            let b = &blocks[i as usize];
            let key = match self.taste {
                Taste::Width => (b.width(), b.size),
                Taste::Size => (b.size, b.width()),
                Taste::Area => (b.width().saturating_mul(b.size), b.width()),
                Taste::Random => {
                    let looks = fingerprint(b.size ^ u64::from(b.lower) << 42 ^ u64::from(b.upper) << 21);
                    (fingerprint(looks ^ self.seed), 0)
                }
            };
            (Reverse(key), b.lower, i)
        });
        let mut kept = from;
        for next in from..candidates.len() {
            let twin = kept > from && blocks[candidates[kept - 1] as usize] == blocks[candidates[next] as usize];
            if !twin {
                candidates[kept] = candidates[next];
                kept += 1;
            }
        }
        candidates.truncate(kept);
    }
}
