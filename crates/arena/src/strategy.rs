//! The order of the exact search: which cell of the packing to decide next, and which buffer to try there first. Every
//! strategy covers the same space; their times differ by factors of thousands from problem to problem, so `solver.rs`
//! runs many of them in turn.
//!
//! ```text
//!          |  a  |     |
//!     +----+  b  +-----+----+      A valley: adjacent columns of one floor between higher walls.
//!     |    |  |  |     |    |      The next decision is about a column of a valley. At * one of the buffers
//!     |    +--+--+-----+    |      that start right of the wall is on the floor, or no buffer is
//!     |    |*  valley  |    |      and the space at * is lost: few choices, because walls are near.
//! ```

use super::columns::{Columns, fingerprint};
use super::compress::{Compressed, CompressedBuffer};
use std::cmp::Reverse;
use std::ops::Range;

/// Which column to decide first. Except with `Fewest` and `FewestLow`, a column without a choice goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// The one with the fewest choices.
    Fewest,
    /// A low one with few choices.
    FewestLow,
    /// The lowest.
    Lowest,
    /// The one that would lose the least space.
    Tightest,
    /// A column of the narrowest valley.
    Narrowest,
    /// The one with the most waiting bytes.
    Fullest,
}

/// The rules in turn. Their number is odd, so that each of them also gets the longer runs, which have indices at powers
/// of two.
const RULES: [Rule; 9] = [
    Rule::Fewest,
    Rule::Lowest,
    Rule::Fewest,
    Rule::Tightest,
    Rule::Fewest,
    Rule::Narrowest,
    Rule::Fewest,
    Rule::FewestLow,
    Rule::Fullest,
];

/// Weights of a buffer's width against its size, in eighths.
const WIDTH_WEIGHTS: [u64; 5] = [4, 0, 8, 2, 6];
/// Weights of a random rank against both.
const CHANCE_WEIGHTS: [u64; 4] = [0, 2, 4, 12];

/// An order in which to search.
pub(super) struct Strategy {
    rule: Rule,
    seed: u64,
    /// For each buffer; the search tries the highest first. Buffers with equal lifespan and size have the same.
    priorities: Vec<u64>,
}

impl Strategy {
    /// The strategy of a run. Each seed gives another mixture of weights.
    pub fn new(problem: &Compressed, seed: u64) -> Self {
        let draw = fingerprint(seed);
        let width_weight = WIDTH_WEIGHTS[(draw % 5) as usize];
        let chance_weight = CHANCE_WEIGHTS[(draw >> 32) as usize % 4];
        let widths = ranks(problem, CompressedBuffer::width);
        let sizes = ranks(problem, |buffer| buffer.size);
        let priority = |(i, buffer): (usize, &CompressedBuffer)| {
            let looks = fingerprint(buffer.size ^ u64::from(buffer.lower) << 42 ^ u64::from(buffer.upper) << 21);
            let chance = fingerprint(looks ^ seed) % RANKS;
            width_weight * widths[i] + (8 - width_weight) * sizes[i] + chance_weight * chance
        };
        let priorities = problem.buffers.iter().enumerate().map(priority).collect();
        Self { rule: RULES[(seed % RULES.len() as u64) as usize], seed, priorities }
    }

    /// Chooses the column of `range` (a component) to decide next.
    pub fn choose(&self, packing: &Columns, range: Range<usize>, capacity: u64) -> usize {
        let mut best = (u64::MAX, u64::MAX, u64::MAX);
        let mut chosen = range.start;
        for valley in valleys(packing, range) {
            for c in valley.clone() {
                let (score, then) = self.score(packing, c, valley.len() as u64, capacity);
                let score = (score, then, fingerprint(self.seed ^ c as u64));
                if score < best {
                    (best, chosen) = (score, c);
                }
            }
        }
        chosen
    }

    /// The score of a column; `choose` takes the lowest.
    fn score(&self, packing: &Columns, c: usize, width: u64, capacity: u64) -> (u64, u64) {
        let column = &packing.columns[c];
        let slack = capacity - column.floor - column.load;
        let least_loss = packing.smallest_neighbor[c].min(column.next - column.floor);
        let choices = u64::from(column.tight) + u64::from(least_loss <= slack);
        match self.rule {
            Rule::Fewest => (choices, 0),
            Rule::FewestLow => (choices * (20 + 1_000 * column.floor / capacity), 0),
            _ if choices <= 1 => (0, 0),
            Rule::Lowest => (1 + column.floor, choices),
            Rule::Tightest => (1 + slack, choices),
            Rule::Narrowest => (width, choices),
            Rule::Fullest => (u64::MAX - column.load, choices),
        }
    }

    /// Sorts the candidates, and keeps one of each set with equal lifespan and size.
    pub fn sort(&self, problem: &Compressed, candidates: &mut Vec<u32>, from: usize) {
        let buffers = &problem.buffers;
        candidates[from..].sort_unstable_by_key(|&i| {
            let buffer = buffers[i as usize];
            (Reverse(self.priorities[i as usize]), buffer.lower, buffer.upper, buffer.size, i)
        });
        let mut kept = from;
        for next in from..candidates.len() {
            let buffer = buffers[candidates[next] as usize];
            if kept == from || buffers[candidates[kept - 1] as usize] != buffer {
                candidates[kept] = candidates[next];
                kept += 1;
            }
        }
        candidates.truncate(kept);
    }
}

/// The runs of columns in `range` that share one floor between higher ones.
fn valleys<'a>(packing: &'a Columns, range: Range<usize>) -> impl Iterator<Item = Range<usize>> + 'a {
    let columns = &packing.columns;
    let mut at = range.start;
    std::iter::from_fn(move || {
        while at < range.end {
            let (lower, floor) = (at, columns[at].floor);
            at += columns[at..range.end].iter().take_while(|column| column.floor == floor).count();
            let wall_on_left = lower == range.start || columns[lower - 1].floor > floor;
            let wall_on_right = at == range.end || columns[at].floor > floor;
            if wall_on_left && wall_on_right {
                return Some(lower..at);
            }
        }
        None
    })
}

/// All ranks are below this, for any number of buffers.
const RANKS: u64 = 1 << 10;

/// For each buffer, the rank of its `key` among the different values.
fn ranks(problem: &Compressed, key: impl Fn(&CompressedBuffer) -> u64) -> Vec<u64> {
    let mut values: Vec<u64> = problem.buffers.iter().map(&key).collect();
    values.sort_unstable();
    values.dedup();
    let rank = |buffer| values.partition_point(|&value| value < key(buffer)) as u64;
    problem.buffers.iter().map(|buffer| rank(buffer) * RANKS / values.len() as u64).collect()
}
