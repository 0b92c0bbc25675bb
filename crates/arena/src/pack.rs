//! Packing within milliseconds, for the planner: cheap attempts, and where they are not enough, the exact search on the
//! few buffers that make the problem hard. For proofs of optimality see `solver.rs`.
//!
//! ```text
//!   load ^        ____                hot     buffers that are live where the load is highest: searched, one upon the
//!        |     __/####\__                     other without a gap
//!        |  __/   ####   \__          rest    laid around those, wherever they fit
//!        |_/______####______\_        peeled  left out from the start: they fit wherever the others are (`peel.rs`)
//! ```
//!
//! A training step needs every byte in a short time around its peak; far from there nearly any packing will do. So
//! what is hot is searched alone; if the rest then does not fit, more is taken to be hot. Work is counted in steps of
//! the search and not in time, so that the same problem always gives the same packing.

use super::columns::Columns;
use super::compress::{Compressed, CompressedBuffer};
use super::heuristic::{Tried, attempts};
use super::orders::Order;
use super::peel::Peeled;
use super::place::{Fit, Placer};
use super::problem::{Problem, Solution};
use super::search::{End, STEPS_BETWEEN_POLLS, Search};
use super::solver::{luby, pushed_down};
use super::strategy::Strategy;
use rayon::prelude::*;
use std::collections::BTreeMap;

/// How far below the capacity a load is still hot, in percent of the capacity, one try after the other.
const HOT_PERCENTS: [u64; 5] = [1, 3, 10, 30, 100];
/// Strategies of the search, each of which is tried on everything that is hot.
const STRATEGIES: u64 = 12;
/// Failures allowed to a strategy.
const FAILS: u64 = 20;
/// What all tries may cost together: steps times the sum of the buffers' widths, which a step may have to look at, and
/// what is looked at to lay the rest. Some ten milliseconds each.
const WORK: Work = Work { search: 8_000_000, lay: 12_000_000 };
/// Work is multiplied by this for the very few problems that are packed badly without.
const PATIENCE: u64 = 2;
/// A packing that is higher than what is enough by more than one part in so many is given up once it is seen.
const HOPELESS: u64 = 50;
/// It is seen after one part in so many of the work: by then nearly all that can be packed well are.
const SEEN_AFTER: u64 = 4;
/// Parts that are searched at the same time.
const TOGETHER: usize = 2;
/// Orders in which the rest is laid around what is hot.
const ORDERS: [Order; 3] = [Order::LoadSize, Order::Width, Order::Size];
/// How often each of them is repaired.
const REPAIRS: usize = 6;

/// A packing of `problem`, near its lower bound where it is a training step. Deterministic.
///
/// No peak below `least` bytes is looked for, and one of at most `enough` bytes is not worth a search.
/// Panics where the problem has no `total_bytes`, or an alignment of 0.
pub fn pack(problem: &Problem, least: u64, enough: u64) -> Solution {
    let whole = Compressed::new(problem);
    let least = whole.bound().max(least / problem.alignment);
    let enough = least.max(enough / problem.alignment);
    let peeled = Peeled::new(&whole, least);
    let tried = Tried::new(&peeled.core, least);
    let mut core = tried.best().to_vec();
    if peeled.core.peak(&core) > enough {
        search_hot_first(&peeled.core, enough, 1, &mut core);
        if peeled.core.peak(&core) > enough {
            tried.repair(enough, &mut core);
        }
        let peak = peeled.core.peak(&core);
        let is_far = peak > enough + 2 * (enough - least);
        if is_far && !is_hopeless(peak, enough) {
            search_hot_first(&peeled.core, enough, PATIENCE, &mut core);
        }
    }
    whole.solution(&pushed_down(&whole, &peeled.complete(&whole, &core)))
}

/// The best of cheap attempts, within a few milliseconds, of which `pack` is no higher. Deterministic; panics likewise.
pub fn pack_quickly(problem: &Problem, enough: u64) -> Solution {
    let whole = Compressed::new(problem);
    let enough = whole.bound().max(enough / problem.alignment);
    let peeled = Peeled::new(&whole, whole.bound());
    let core = attempts(&peeled.core, enough);
    whole.solution(&pushed_down(&whole, &peeled.complete(&whole, &core)))
}

fn is_hopeless(peak: u64, enough: u64) -> bool {
    peak > enough + enough / HOPELESS
}

/// Replaces `best` by a packing under the capacity, or by a lower one, if one is found.
fn search_hot_first(problem: &Compressed, capacity: u64, patience: u64, best: &mut Vec<u64>) {
    let parts: Vec<Part> = HOT_PERCENTS.iter().map(|&percent| Part::hot(problem, capacity, percent)).collect();
    let mut parts: Vec<Part> = parts.iter().map(Part::merged).chain(parts.iter().cloned()).collect();
    parts.dedup_by_key(|part| part.problem.buffers.len());
    parts.retain(|part| !part.problem.buffers.is_empty());
    let mut searches: Vec<HotSearch> = parts.iter().map(HotSearch::new).collect();
    let all = Work { search: WORK.search * patience, lay: WORK.lay * patience };
    let seen = Work { search: all.search - all.search / SEEN_AFTER, lay: all.lay - all.lay / SEEN_AFTER };
    let mut left = all;
    for seed in 0..STRATEGIES {
        for searches in searches.chunks_mut(TOGETHER) {
            let is_seen = left.search < seen.search || left.lay < seen.lay;
            if is_seen && is_hopeless(problem.peak(best), capacity) {
                return;
            }
            let tried = searches.par_iter_mut().map(|search| search.laid(problem, capacity, seed, left));
            for (offsets, spent) in tried.collect::<Vec<_>>() {
                left = left.without(spent);
                let Some(offsets) = offsets else { continue };
                if problem.peak(&offsets) < problem.peak(best) {
                    *best = offsets;
                }
                if problem.peak(best) <= capacity {
                    return;
                }
            }
        }
    }
}

/// What may still be spent, or was.
#[derive(Clone, Copy)]
struct Work {
    search: u64,
    lay: u64,
}

impl Work {
    fn without(self, spent: Self) -> Self {
        Self { search: self.search.saturating_sub(spent.search), lay: self.lay.saturating_sub(spent.lay) }
    }
}

/// Some of a problem's buffers.
#[derive(Clone)]
struct Part {
    /// They alone, but those that belong together as one.
    problem: Compressed,
    /// What each of its buffers is made of, one upon the other: indices in the whole problem, and sizes.
    members: Vec<Vec<(usize, u64)>>,
}

impl Part {
    /// The buffers that are live where the load is at most so far below the capacity.
    fn hot(problem: &Compressed, capacity: u64, percent: u64) -> Self {
        let lowest = capacity - capacity / 100 * percent;
        let is_hot = |buffer: &CompressedBuffer| problem.loads[buffer.columns()].iter().any(|&load| load >= lowest);
        let buffers = problem.buffers.iter().zip(0u32..);
        let hot: Vec<u32> = buffers.filter(|(buffer, _)| percent == 100 || is_hot(buffer)).map(|(_, i)| i).collect();
        let part = problem.part(&hot);
        let members = part.indices.iter().zip(&part.buffers).map(|(&i, buffer)| vec![(i, buffer.size)]).collect();
        Self { problem: part, members }
    }

    /// The same with buffers of one lifespan stuck together. Nothing is lost by that, as a rule: they come and go
    /// together. The search is faster by far.
    fn merged(&self) -> Self {
        let mut together = BTreeMap::<(u32, u32), Vec<(usize, u64)>>::new();
        for (buffer, members) in self.problem.buffers.iter().zip(&self.members) {
            together.entry((buffer.lower, buffer.upper)).or_default().extend(members);
        }
        let size = |members: &Vec<(usize, u64)>| members.iter().map(|(_, size)| size).sum();
        let buffer = |(&(lower, upper), members)| CompressedBuffer { lower, upper, size: size(members) };
        let buffers = together.iter().map(buffer).collect();
        Self { problem: Compressed { buffers, ..self.problem.clone() }, members: together.into_values().collect() }
    }
}

/// The lowest packing of all buffers that is found around those that are placed already, or the first under the capacity. What
/// sticks out of the capacity goes to the front of the order, as in `heuristic.rs`. And the work that was spent.
fn around(problem: &Compressed, lying: &[(usize, u64)], capacity: u64, work: u64) -> (Vec<u64>, u64) {
    let buffers = &problem.buffers;
    let mut offsets = vec![0; buffers.len()];
    let mut placed = vec![false; buffers.len()];
    for &(buffer, offset) in lying {
        (offsets[buffer], placed[buffer]) = (offset, true);
    }
    let mut placer = Placer::default();
    let mut best = None;
    for order in ORDERS {
        let mut rest = order.sorted(problem);
        rest.retain(|&buffer| !placed[buffer as usize]);
        for _ in 0..REPAIRS {
            if best.is_some() && placer.work >= work {
                break;
            }
            placer.start(buffers, lying.iter().copied());
            let peak = placer.add(buffers, &rest, Fit::Lowest, &mut offsets);
            if best.as_ref().is_none_or(|(least, _)| peak < *least) {
                best = Some((peak, offsets.clone()));
            }
            if peak <= capacity {
                return (offsets, placer.work);
            }
            let sticks_out = |i: &u32| offsets[*i as usize] + buffers[*i as usize].size > capacity;
            rest.sort_by_key(|buffer| !sticks_out(buffer));
        }
    }
    (best.expect("there are orders").1, placer.work)
}

/// The search of a part of a problem, begun only where there is enough work left for it to end.
struct HotSearch<'a> {
    part: &'a Part,
    search: Option<Search<'a>>,
    cost_of_step: u64,
}

impl<'a> HotSearch<'a> {
    fn new(part: &'a Part) -> Self {
        Self { part, search: None, cost_of_step: part.problem.buffers.iter().map(CompressedBuffer::width).sum() }
    }

    /// The lowest packing of the whole problem around the part if all of it is under the capacity; and the work that was spent.
    fn laid(&mut self, problem: &Compressed, capacity: u64, seed: u64, left: Work) -> (Option<Vec<u64>>, Work) {
        let (is_found, search) = self.run(capacity, seed, left.search);
        if !is_found {
            return (None, Work { search, lay: 0 });
        }
        let (offsets, lay) = around(problem, &self.lying(), capacity, left.lay);
        (Some(offsets), Work { search, lay })
    }

    /// Whether all buffers of the part are under the capacity now; and the work that was spent.
    fn run(&mut self, capacity: u64, seed: u64, work: u64) -> (bool, u64) {
        // A run that takes no wrong turn takes a step for each buffer.
        let steps_left = work / self.cost_of_step;
        if steps_left < self.part.problem.buffers.len() as u64 {
            return (false, 0);
        }
        let mut polls_left = steps_left / STEPS_BETWEEN_POLLS;
        let mut stop = || {
            polls_left = polls_left.saturating_sub(1);
            polls_left == 0
        };
        let search = self.search.get_or_insert_with(|| Search::new(Columns::new(&self.part.problem)));
        let before = search.steps;
        let end = search.run(capacity, &Strategy::new(&self.part.problem, seed), FAILS * luby(seed + 1), &mut stop);
        (end == End::Found, (search.steps - before) * self.cost_of_step)
    }

    /// Offsets of the buffers.
    fn lying(&self) -> Vec<(usize, u64)> {
        let offsets = self.search.iter().flat_map(|search| &search.packing.offsets);
        let mut lying = Vec::new();
        for (members, &bottom) in self.part.members.iter().zip(offsets) {
            let mut offset = bottom;
            for &(buffer, size) in members {
                lying.push((buffer, offset));
                offset += size;
            }
        }
        lying
    }
}
