//! The exact solver: finds a packing under a capacity or proves that there is none; without a capacity,
//! lowers the peak until it is proved to be the lowest.
//!
//! ```text
//!   bytes
//!     | peak of the best packing so far   <- lowered by every packing found
//!     |      ^
//!     |      |  a run tries one target between the two, for a limited number of failures
//!     |      v
//!     | proved lower bound                <- raised by every target refuted
//! ```
//!
//! The search (`search.rs`) is exact with every strategy, but its time varies by factors of thousands. So it runs
//! repeatedly, each time with another strategy, with limits in the order of Luby, Sinclair and Zuckerman 1993 (1 1 2 1
//! 1 2 4 1 1 2 1 1 2 4 8 ...), which is within a logarithmic factor of the best order for every distribution of times.
//! Later runs reuse what earlier ones refuted. The solver has no clock: it asks the caller regularly whether to stop.

use super::columns::Columns;
use super::compress::Compressed;
use super::heuristic::pack_buffers;
use super::problem::{Problem, Solution};
use super::search::{End, Search};
use super::strategy::Strategy;

/// What is proved about a solution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// No packing has a lower peak.
    Optimal,
    /// The solution fits the capacity; without a capacity, it is the best one found before the stop.
    Feasible,
    /// No packing fits the capacity. This is proved.
    Infeasible,
    /// The search was stopped before it found a packing that fits the capacity.
    Stopped,
}

/// The answer of `solve`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The best packing found. It is valid for every status, but its peak exceeds the capacity for `Infeasible` and
    /// `Stopped`.
    pub solution: Solution,
    /// What is proved about it.
    pub status: Status,
    /// The best proved lower bound of the peak, in bytes.
    pub lower_bound: u64,
    /// Number of branches that the search took: the same on every machine.
    pub steps: u64,
}

/// Failures allowed in the shortest runs.
const FAILS: u64 = 20;
/// The search runs only if the sum over all columns of their live buffers is at most this (about 1 GiB).
const MAX_CELLS: u64 = 1 << 28;

/// Packs `problem` within `capacity` bytes, or with the lowest peak if that is `None`.
///
/// Calls `stop` about every hundred steps (some tenths of a millisecond for a few hundred buffers); the outcome depends
/// only on the arguments and on what `stop` returns. Problems with tens of thousands of buffers live at the same time
/// are only packed, not searched.
/// Panics if the problem has no `total_bytes`, or an alignment of 0.
pub fn solve(problem: &Problem, capacity: Option<u64>, stop: &mut dyn FnMut() -> bool) -> Outcome {
    let compressed = Compressed::new(problem);
    let mut known = Known::new(&compressed, capacity.map(|bytes| bytes / problem.alignment));
    let cells: u64 = compressed.buffers.iter().map(|buffer| buffer.width()).sum();
    if known.is_enough() || cells > MAX_CELLS {
        return known.outcome(0);
    }
    let mut search = Search::new(Columns::new(&compressed));
    for round in 0.. {
        let strategy = Strategy::new(&compressed, round);
        for target in known.targets(round) {
            match search.run(target, &strategy, FAILS * luby(round + 1), stop) {
                End::Found => known.found(&search.packing.offsets),
                End::Refuted => known.bound = known.bound.max(target + 1),
                End::GaveUp => {}
                End::Stopped => return known.outcome(search.steps),
            }
            if known.is_enough() {
                return known.outcome(search.steps);
            }
        }
    }
    unreachable!("the limits grow until a run covers the whole search space")
}

/// The best packing and bounds so far, in units of the alignment.
struct Known<'a> {
    problem: &'a Compressed,
    capacity: Option<u64>,
    /// The proved lower bound of the peak.
    bound: u64,
    /// The best packing, and its peak.
    offsets: Vec<u64>,
    peak: u64,
}

impl<'a> Known<'a> {
    fn new(problem: &'a Compressed, capacity: Option<u64>) -> Self {
        let offsets = pack_buffers(problem);
        let peak = problem.peak(&offsets);
        Self { problem, capacity, bound: problem.bound(), offsets, peak }
    }

    /// Whether the result is final.
    fn is_enough(&self) -> bool {
        match self.capacity {
            Some(capacity) => self.peak <= capacity || self.bound > capacity,
            None => self.peak == self.bound,
        }
    }

    /// The capacities to try in a round: the requested one; or the lowest possible peak, and one value between that and
    /// the best peak, at a half, a quarter, an eighth or a sixteenth of the gap.
    fn targets(&self, round: u64) -> Vec<u64> {
        if let Some(capacity) = self.capacity {
            return vec![capacity];
        }
        let gap = self.peak - self.bound;
        vec![self.bound, self.peak - (gap >> (1 + round % 4)).max(1)]
    }

    /// Pushes a packing's buffers down as far as possible and keeps it if it is better.
    fn found(&mut self, offsets: &[u64]) {
        let offsets = push_down(self.problem, offsets);
        let peak = self.problem.peak(&offsets);
        if peak < self.peak {
            (self.offsets, self.peak) = (offsets, peak);
        }
    }

    fn outcome(&self, steps: u64) -> Outcome {
        let fits = self.capacity.is_none_or(|capacity| self.peak <= capacity);
        let status = match self.capacity {
            _ if fits && self.peak == self.bound => Status::Optimal,
            _ if fits => Status::Feasible,
            Some(capacity) if self.bound > capacity => Status::Infeasible,
            _ => Status::Stopped,
        };
        let lower_bound = self.bound * self.problem.alignment;
        Outcome { solution: self.problem.solution(&self.offsets), status, lower_bound, steps }
    }
}

/// Moves every buffer down onto the buffers below it, starting with the lowest.
pub(super) fn push_down(problem: &Compressed, offsets: &[u64]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..offsets.len()).collect();
    order.sort_by_key(|&i| offsets[i]);
    let mut floors = vec![0; problem.loads.len()];
    let mut lowered = vec![0; offsets.len()];
    for i in order {
        let buffer = problem.buffers[i];
        let floor = floors[buffer.columns()].iter().copied().max().unwrap_or(0);
        floors[buffer.columns()].fill(floor + buffer.size);
        lowered[i] = floor;
    }
    lowered
}

/// The sequence 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 ..., from `index` 1.
pub(super) fn luby(index: u64) -> u64 {
    let power = (index + 1).next_power_of_two();
    if power == index + 1 { power / 2 } else { luby(index + 1 - power / 2) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::training::training_step;

    #[test]
    fn targets_are_the_bound_and_fractions_of_the_gap_above_it() {
        let problem = Compressed::new(&training_step(1, 20));
        let known = |capacity| Known { problem: &problem, capacity, bound: 60, offsets: vec![], peak: 100 };
        let targets = (0..5).map(|round| known(None).targets(round)).collect::<Vec<_>>();
        assert_eq!(targets, [[60, 80], [60, 90], [60, 95], [60, 98], [60, 80]]);
        assert_eq!(known(Some(70)).targets(0), [70]);
        assert_eq!(Known { peak: 61, ..known(None) }.targets(3), [60, 60]);
    }

    #[test]
    fn luby_sequence() {
        let start: Vec<u64> = (1..=15).map(super::luby).collect();
        assert_eq!(start, [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]);
    }
}
