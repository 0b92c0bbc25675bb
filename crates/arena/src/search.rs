//! The exact search: decides for one cell after another which buffer covers it, until all are placed or nothing fits.
//!
//! ```text
//!   decision        the cell * on the floor of a valley: which buffer is there?
//!    |- buffer a     -> the rest splits into parts that no waiting buffer connects ... all must succeed
//!    |- buffer b     -> ...                                                        ... one must succeed
//!    '- none        -> the space up to the next possible height is lost
//! ```
//!
//! This covers every packing whose buffers are as low as possible (every optimal packing can be pushed down to one),
//! each in one way: either some buffer covers the cell or none does. Buffers are placed from the bottom up, so that
//! waiting buffers are above the floors. A buffer that is live in all columns of a part is hung under the ceiling
//! immediately: in any packing with the buffer elsewhere, the buffers above it can be moved down and the buffer put on
//! top.
//!
//! Decomposition in time, floors with the waiting buffers above them, and raising floors by inference are ideas of
//! Moffitt, "MiniMalloc", ASPLOS 2023. That solver places buffers in the order of their offsets, over all of time;
//! deciding the cell with the fewest choices, wherever it is, comes from constraint programming, as do the restarts in
//! `solver.rs` and `nogoods.rs`.

use super::columns::{Columns, Overfull, components};
use super::nogoods::{Key, Nogoods};
use super::strategy::Strategy;
use std::cmp::Reverse;
use std::ops::Range;

/// The result of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// All buffers are under the capacity; their offsets are in `Search::packing.offsets`.
    Found,
    /// No packing fits the capacity.
    Refuted,
    /// The run reached its limit of failures.
    GaveUp,
    /// The caller stopped it.
    Stopped,
}

/// Columns that waiting buffers connect, and the ceiling above them.
#[derive(Debug, Clone)]
struct Part {
    columns: Range<u32>,
    capacity: u64,
}

/// A decision about which buffer is on the floor of one column.
struct Decision {
    part: Part,
    column: usize,
    key: Key,
    /// The mark of the packing before any of its branches.
    mark: usize,
    /// The index of its first candidate in the stack of candidates.
    first_candidate: usize,
    /// The first untried candidate.
    next_candidate: usize,
    /// Whether the branch without a buffer was tried.
    wasted: bool,
    /// The index of the first part of its current branch in the stack of parts.
    first_part: usize,
}

/// The result of opening a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PartState {
    /// Its buffers are placed, or split off as other parts.
    Closed,
    /// The latest decision is about it.
    Open,
    /// It cannot be packed.
    Failed,
}

/// The result of taking a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Branch {
    Taken,
    Failed,
    /// No branch was left.
    Exhausted,
}

/// Searches for a packing.
pub(super) struct Search<'a> {
    pub packing: Columns<'a>,
    /// Branches taken, in all runs.
    pub steps: u64,
    fails: u64,
    nogoods: Nogoods,
    /// The decisions so far, the latest last.
    decisions: Vec<Decision>,
    candidates: Vec<u32>,
    /// The parts still to pack, those of the latest decision last.
    parts: Vec<Part>,
}

/// Steps between two calls of `stop`.
pub(super) const STEPS_BETWEEN_POLLS: u64 = 128;

impl<'a> Search<'a> {
    pub fn new(packing: Columns<'a>) -> Self {
        let (decisions, candidates, parts) = (Vec::new(), Vec::new(), Vec::new());
        Self { packing, steps: 0, fails: 0, nogoods: Nogoods::new(), decisions, candidates, parts }
    }

    /// Searches from the beginning for a packing under `capacity`, until `fails` branches have failed.
    pub fn run(&mut self, capacity: u64, strategy: &Strategy, fails: u64, stop: &mut dyn FnMut() -> bool) -> End {
        if capacity < self.packing.problem.bound() {
            return End::Refuted;
        }
        self.packing.undo(0);
        self.decisions.clear();
        self.candidates.clear();
        self.parts.clear();
        self.split(0..self.packing.columns.len() as u32, capacity);
        let last_fail = self.fails.saturating_add(fails);

        loop {
            if self.parts.len() == self.decisions.last().map_or(0, |latest| latest.first_part) {
                // All parts of the latest decision's branch are placed.
                match self.decisions.pop() {
                    None => return End::Found,
                    Some(latest) => self.candidates.truncate(latest.first_candidate),
                }
                continue;
            }
            let part = self.parts.pop().expect("the latest decision has parts left");
            if self.open(part, strategy) == PartState::Closed {
                continue;
            }
            // Either there is a new decision to branch on, or the latest one took a branch that failed.
            loop {
                if self.decisions.is_empty() {
                    return End::Refuted;
                }
                let branch = self.branch();
                if self.fails >= last_fail {
                    return End::GaveUp;
                }
                if self.steps.is_multiple_of(STEPS_BETWEEN_POLLS) && stop() {
                    return End::Stopped;
                }
                if branch == Branch::Taken {
                    break;
                }
            }
        }
    }

    /// Adds the parts of `columns` to the parts to pack, the smallest first.
    fn split(&mut self, columns: Range<u32>, capacity: u64) {
        let from = self.parts.len();
        let parts = components(&self.packing.columns, columns);
        self.parts.extend(parts.map(|columns| Part { columns, capacity }));
        self.parts[from..].sort_by_key(|part| Reverse(part.columns.len()));
    }

    /// Hangs the buffers that span the part, and chooses the first decision for the rest.
    fn open(&mut self, part: Part, strategy: &Strategy) -> PartState {
        let Part { columns, capacity } = part;
        let buffers = &self.packing.problem.buffers;
        let spans = |&i: &u32| (buffers[i as usize].lower, buffers[i as usize].upper) == (columns.start, columns.end);
        let spanning: Vec<u32> = self.packing.waiting_in(columns.start as usize).filter(spans).collect();
        if !spanning.is_empty() {
            let Ok(ceiling) = self.packing.hang(&spanning, capacity) else {
                self.fails += 1;
                return PartState::Failed;
            };
            self.split(columns, ceiling);
            return PartState::Closed;
        }

        let range = columns.start as usize..columns.end as usize;
        let key = Key::of(&self.packing.columns[range.clone()], capacity);
        if self.nogoods.contains(key) {
            self.fails += 1;
            return PartState::Failed;
        }
        let column = strategy.choose(&self.packing, range, capacity);
        let first_candidate = self.candidates.len();
        let floor = self.packing.columns[column].floor;
        let tight = self.packing.waiting_in(column).filter(|&i| self.packing.lowest[i as usize] == floor);
        self.candidates.extend(tight);
        strategy.sort(self.packing.problem, &mut self.candidates, first_candidate);
        self.decisions.push(Decision {
            part: Part { columns, capacity },
            column,
            key,
            mark: self.packing.mark(),
            first_candidate,
            next_candidate: first_candidate,
            wasted: false,
            first_part: self.parts.len(),
        });
        PartState::Open
    }

    /// Undoes the latest decision's branch and takes its next one. If there is none, drops the decision; then the
    /// branch that led to it has failed.
    fn branch(&mut self) -> Branch {
        let latest = self.decisions.last_mut().expect("there is a decision");
        self.steps += 1;
        self.packing.undo(latest.mark);
        self.parts.truncate(latest.first_part);

        let Part { columns, capacity } = latest.part.clone();
        let result = if let Some(&buffer) = self.candidates.get(latest.next_candidate) {
            latest.next_candidate += 1;
            self.packing.place(buffer, capacity)
        } else {
            let height = next_height(&self.packing, latest.column, &self.candidates[latest.first_candidate..]);
            if latest.wasted || height > capacity {
                self.nogoods.insert(latest.key);
                self.candidates.truncate(latest.first_candidate);
                self.decisions.pop();
                return Branch::Exhausted;
            }
            latest.wasted = true;
            self.packing.waste(latest.column, height, capacity)
        };
        match result {
            Err(Overfull) => {
                self.fails += 1;
                Branch::Failed
            }
            Ok(()) => {
                self.split(columns, capacity);
                Branch::Taken
            }
        }
    }
}

/// The next height above the floor at which a buffer can be in a column if none of `candidates` (all that could be on
/// the floor) is on it. A candidate must then rest on a buffer next to the column: if it rested on one in the column,
/// it would not be the lowest there.
fn next_height(packing: &Columns, column: usize, candidates: &[u32]) -> u64 {
    let mut height = packing.columns[column].next;
    for &candidate in candidates {
        for i in packing.waiting_neighbors(candidate) {
            let buffer = packing.problem.buffers[i as usize];
            if !buffer.columns().contains(&column) {
                height = height.min(packing.lowest[i as usize] + buffer.size);
            }
        }
    }
    height
}
