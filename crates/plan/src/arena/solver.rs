//! The exact solver: runs many strategies of the search in turn, each for longer when its turn comes again, until a
//! packing is found, none is proved to exist, or the caller has had enough. What one run learned of packings that
//! can't be finished serves all later ones.
//!
//! The clock lies outside: this is a pure function of the problem and of when `stop` says so.
//! Sources: Moffitt 2023 (MiniMalloc: canonical packings, decomposition in time, pruning by what must still go on
//! top); Luby, Sinclair & Zuckerman 1993 (the lengths of the runs).

use super::bound::lower_bound;
use super::columns::Columns;
use super::compress::Compressed;
use super::heuristic::pack_blocks;
use super::problem::{Problem, Solution};
use super::search::{End, Search};
use super::strategy::{Rule, Strategy, Taste};

/// What is known about a solution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// No packing has a lower peak.
    Optimal,
    /// It is within the capacity; a lower peak may exist.
    Feasible,
    /// No packing is within the capacity; the solution exceeds it.
    Infeasible,
    /// The caller stopped the search; the solution is the best so far and may exceed the capacity.
    Stopped,
}

/// What a search came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The best packing that was found; always a valid one.
    pub solution: Solution,
    /// What is known about it.
    pub status: Status,
    /// Branches that were taken: a measure of work that does not depend on the machine.
    pub steps: u64,
}

const RULES: [Rule; 6] = [Rule::Fewest, Rule::Lowest, Rule::Tightest, Rule::Narrowest, Rule::FewestLow, Rule::Fullest];
const TASTES: [Taste; 4] = [Taste::Size, Taste::Width, Taste::Area, Taste::Random];
/// Failures after which the shortest run gives up.
const SHORTEST_RUN: u64 = 20;

/// Packs a problem within `capacity` (bytes), or without one as low as possible. `stop` is asked every some hundred
/// steps, and the search ends when it says so.
pub fn solve(problem: &Problem, capacity: Option<u64>, stop: &mut dyn FnMut() -> bool) -> Outcome {
    let compressed = Compressed::new(problem);
    let mut best = compressed.solution(&pack_blocks(&compressed));
    let bound = lower_bound(problem).bytes;
    let mut search = Search::new(Columns::new(&compressed));
    // Peaks below `lowest` are impossible, or of no interest where a capacity is given.
    let mut lowest = capacity.map_or(bound, |capacity| capacity.max(bound));
    let satisfied = |best: &Solution, lowest: u64| best.peak <= lowest;
    if capacity.is_some_and(|capacity| capacity < bound) {
        return Outcome { solution: best, status: Status::Infeasible, steps: 0 };
    }
    let mut runs = 0..;
    while !satisfied(&best, lowest) {
        let ceilings = match capacity {
            Some(capacity) => vec![capacity],
            None => vec![lowest, lowest + (best.peak - lowest) / 2, best.peak - problem.alignment],
        };
        let run = runs.next().expect("an endless range");
        for ceiling in ceilings {
            if ceiling < lowest || ceiling >= best.peak {
                continue;
            }
            let fails = SHORTEST_RUN * luby(run + 1);
            match search.run(ceiling / compressed.alignment, strategy(run), fails, stop) {
                End::Found => best = compressed.solution(&search.packing.offsets),
                End::Refuted if capacity.is_some() => {
                    return Outcome { solution: best, status: Status::Infeasible, steps: search.steps };
                }
                End::Refuted => lowest = (ceiling / problem.alignment + 1) * problem.alignment,
                End::GaveUp => {}
                End::Stopped => return Outcome { solution: best, status: Status::Stopped, steps: search.steps },
            }
        }
    }
    let proved = best.peak == bound || capacity.is_none();
    Outcome { solution: best, status: if proved { Status::Optimal } else { Status::Feasible }, steps: search.steps }
}

/// The strategy of a run: all rules and tastes in turn.
fn strategy(run: u64) -> Strategy {
    let turn = run as usize;
    Strategy { rule: RULES[turn % RULES.len()], taste: TASTES[turn / RULES.len() % TASTES.len()], seed: run }
}

/// 1, 1, 2, 1, 1, 2, 4, 1, … for i = 1, 2, …: run lengths that are within a logarithm of the best for any search.
fn luby(i: u64) -> u64 {
    let bits = u64::BITS - i.leading_zeros();
    if i == (1 << bits) - 1 { 1 << (bits - 1) } else { luby(i - ((1 << (bits - 1)) - 1)) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn run_lengths_are_lubys() {
        let expected = [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8];
        assert_eq!((1..=15).map(super::luby).collect::<Vec<_>>(), expected);
    }
}
