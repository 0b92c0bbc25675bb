//! The exact search: decides cell after cell what lies there, until all blocks lie or nothing fits.

use super::columns::{Columns, Overfull, components};
use super::nogoods::{Key, Nogoods};
use super::strategy::Strategy;
use std::ops::Range;

/// How a search ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// All blocks lie under the capacity.
    Found,
    /// There is no packing under the capacity.
    Refuted,
    /// It failed more often than it may.
    GaveUp,
    /// The caller stopped it.
    Stopped,
}

/// Columns that hold together, and the ceiling over them.
#[derive(Debug, Clone)]
struct Component {
    columns: Range<u32>,
    capacity: u64,
}

/// A decision: what lies on the floor of a column of a component.
struct Decision {
    component: Component,
    column: usize,
    key: Key,
    /// Where its candidates begin and end in the stack of candidates; which is next.
    candidates: Range<usize>,
    next: usize,
    wasted: bool,
    /// Where its current branch's parts begin in the stack of components; which is next.
    parts: usize,
    next_part: usize,
    mark: usize,
}

/// Runs searches over one packing.
pub(super) struct Search<'a> {
    pub packing: Columns<'a>,
    /// Branches taken, over all runs.
    pub steps: u64,
    nogoods: Nogoods,
    fails: u64,
    decisions: Vec<Decision>,
    candidates: Vec<u32>,
    parts: Vec<Component>,
}

/// Steps between two questions whether to stop.
const STEPS_BETWEEN_POLLS: u64 = 256;

impl<'a> Search<'a> {
    pub fn new(packing: Columns<'a>) -> Self {
        Self {
            packing,
            nogoods: Nogoods::new(),
            steps: 0,
            fails: 0,
            decisions: Vec::new(),
            candidates: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// Looks for a packing under `capacity` until it has failed `most_fails` times. `stop` is asked now and then.
    pub fn run(&mut self, capacity: u64, strategy: Strategy, most_fails: u64, stop: &mut dyn FnMut() -> bool) -> End {
        self.packing.undo(0);
        self.decisions.clear();
        self.candidates.clear();
        self.parts.clear();
        let last = self.fails.saturating_add(most_fails);
        let all = 0..self.packing.columns.len() as u32;
        let mut roots: Vec<Component> = self.split(all, capacity);
        while let Some(root) = roots.pop() {
            match self.open(root, strategy) {
                Opened::Solved => {
                    roots.append(&mut self.parts);
                    continue;
                }
                Opened::Failed => return End::Refuted,
                Opened::Decision => {}
            }
            let mut going_down = false;
            // The decision on top of the stack needs its next branch, or while going down its next part.
            while let Some(top) = self.decisions.len().checked_sub(1) {
                if !going_down {
                    if self.fails >= last {
                        return End::GaveUp;
                    }
                    self.steps += 1;
                    if self.steps.is_multiple_of(STEPS_BETWEEN_POLLS) && stop() {
                        return End::Stopped;
                    }
                    match self.branch(top) {
                        None => {
                            let d = self.decisions.pop().expect("top");
                            self.nogoods.insert(d.key);
                            self.candidates.truncate(d.candidates.start);
                            self.parts.truncate(d.parts);
                            if self.decisions.is_empty() {
                                return End::Refuted;
                            }
                        }
                        Some(Err(Overfull)) => self.fails += 1,
                        Some(Ok(())) => {
                            let d = &self.decisions[top];
                            let c = d.component.clone();
                            self.parts.truncate(self.decisions[top].parts);
                            let mut parts = self.split(c.columns, c.capacity);
                            self.parts.append(&mut parts);
                            self.decisions[top].next_part = self.decisions[top].parts;
                            going_down = true;
                        }
                    }
                } else {
                    let d = &mut self.decisions[top];
                    if d.next_part == self.parts.len() {
                        let d = self.decisions.pop().expect("top");
                        self.candidates.truncate(d.candidates.start);
                        self.parts.truncate(d.parts);
                        continue;
                    }
                    let part = self.parts[d.next_part].clone();
                    d.next_part += 1;
                    match self.open(part, strategy) {
                        Opened::Solved => {}
                        Opened::Failed => {
                            self.fails += 1;
                            going_down = false
                        }
                        Opened::Decision => going_down = false,
                    }
                }
            }
        }
        End::Found
    }

    /// The independent parts of a range of columns, the largest last.
    fn split(&self, range: Range<u32>, capacity: u64) -> Vec<Component> {
        let mut parts: Vec<Component> =
            components(&self.packing.columns, range).map(|columns| Component { columns, capacity }).collect();
        parts.sort_by_key(|part| part.columns.len());
        parts
    }

    /// Begins to pack a component.
    fn open(&mut self, component: Component, strategy: Strategy) -> Opened {
        let Component { columns, mut capacity } = component;
        let range = columns.start as usize..columns.end as usize;
        // A block that is live in every column may as well hang from the ceiling.
        let spanning: Vec<u32> = self
            .packing
            .waiting_in(range.start)
            .filter(|&x| {
                let b = self.packing.problem.blocks[x as usize];
                b.lower == columns.start && b.upper == columns.end
            })
            .collect();
        let hung = !spanning.is_empty();
        for x in spanning {
            capacity -= self.packing.problem.blocks[x as usize].size;
            if self.packing.hang(x, capacity).is_err() {
                return Opened::Failed;
            }
        }
        if hung {
            let mut parts = self.split(columns, capacity);
            self.parts.append(&mut parts);
            return Opened::Solved;
        }
        let key = Key::of(&self.packing.columns[range.clone()], capacity);
        if self.nogoods.contains(key) {
            return Opened::Failed;
        }
        let column = strategy.choose(&self.packing, range, capacity);
        let from = self.candidates.len();
        let floor = self.packing.columns[column].floor;
        let packing = &self.packing;
        self.candidates.extend(packing.waiting_in(column).filter(|&x| packing.lowest[x as usize] == floor));
        strategy.sort(packing, &mut self.candidates, from);
        self.decisions.push(Decision {
            component: Component { columns, capacity },
            column,
            key,
            candidates: from..self.candidates.len(),
            next: from,
            wasted: false,
            parts: self.parts.len(),
            next_part: 0,
            mark: self.packing.mark(),
        });
        Opened::Decision
    }

    /// Takes the next branch of a decision: a block onto the floor, or at last none, and the space is lost.
    /// None: all were tried.
    fn branch(&mut self, top: usize) -> Option<Result<(), Overfull>> {
        let d = &mut self.decisions[top];
        self.packing.undo(d.mark);
        let capacity = d.component.capacity;
        if d.next < d.candidates.end {
            let block = self.candidates[d.next];
            d.next += 1;
            return Some(self.packing.place(block, capacity));
        }
        if d.wasted {
            return None;
        }
        d.wasted = true;
        let height = waste_to(&self.packing, d.column, &self.candidates[d.candidates.clone()]);
        if height > capacity {
            return None;
        }
        Some(self.packing.waste(d.column, height, capacity))
    }
}

/// What became of a component.
enum Opened {
    /// Blocks that span it hang from its ceiling; what is left of it are new parts.
    Solved,
    /// Nothing fits.
    Failed,
    /// There is a new decision on the stack.
    Decision,
}

/// The lowest height at which something could lie in the column if none of the candidates lies on its floor.
fn waste_to(packing: &Columns, column: usize, candidates: &[u32]) -> u64 {
    let mut height = packing.columns[column].next;
    for &x in candidates {
        for y in packing.waiting_beside(x) {
            let b = packing.problem.blocks[y as usize];
            if !b.columns().contains(&column) {
                height = height.min(packing.lowest[y as usize] + b.size);
            }
        }
    }
    height
}
