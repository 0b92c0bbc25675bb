//! Packing within milliseconds, for the planner: cheap attempts first; if their result is too high, an exact search
//! over the few buffers that make the problem hard. `solver.rs` proves optimality.
//!
//! ```text
//!   load ^        ____                hot     buffers that are live where the load is highest: searched, stacked
//!        |     __/####\__                     without gaps
//!        |  __/   ####   \__          rest    placed around the hot buffers, wherever they fit
//!        |_/______####______\_        peeled  left out from the start: they fit in every case (`peel.rs`)
//! ```
//!
//! A training step needs every byte only during a short time around its peak; elsewhere nearly any packing works. So
//! the search covers the hot buffers only; if the rest then does not fit, more buffers count as hot. Work is counted in
//! steps of the search, not in time, so that the same problem always gives the same packing.

use super::columns::Columns;
use super::compress::{Compressed, CompressedBuffer};
use super::heuristic::{Attempts, attempts};
use super::orders::Order;
use super::peel::Peeled;
use super::place::{Fit, Placer};
use super::problem::{Problem, Solution};
use super::search::{End, STEPS_BETWEEN_POLLS, Search};
use super::solver::{luby, push_down};
use super::strategy::Strategy;
use rayon::prelude::*;
use std::collections::BTreeMap;

/// A buffer is hot if the load comes this close to the capacity, in percent of the capacity. Tried in this order.
const HOT_PERCENTS: [u64; 5] = [1, 3, 10, 30, 100];
/// Number of search strategies, each tried on every set of hot buffers.
const STRATEGIES: u64 = 12;
/// Failures allowed per strategy.
const FAILS: u64 = 20;
/// Limits for all tries together. `search`: steps times the sum of the buffers' widths, which bounds the work of a
/// step. `place`: buffers examined to place the rest. About ten milliseconds each.
const WORK: Work = Work { search: 8_000_000, place: 12_000_000 };
/// Factor of the work for the very few problems that pack badly with `WORK`.
const PATIENCE: u64 = 2;
/// A packing that exceeds `enough` by more than 1 / `HOPELESS` is hopeless: the search stops early.
const HOPELESS: u64 = 50;
/// The search checks for a hopeless packing after 1 / `CHECK_AFTER` of the work. By then it has packed nearly all
/// problems that it can pack well.
const CHECK_AFTER: u64 = 4;
/// Number of parts that are searched in parallel.
const PARALLEL_PARTS: usize = 2;
/// Orders in which the rest is placed around the hot buffers.
const ORDERS: [Order; 3] = [Order::LoadSize, Order::Width, Order::Size];
/// Number of repairs of each order.
const REPAIRS: usize = 6;

/// Packs `problem`; for a training step the peak is near the lower bound. Deterministic.
///
/// Stops at a peak of `least` bytes, and does not search if the cheap attempts reach a peak of at most `enough` bytes.
/// Panics if the problem has no `total_bytes`, or an alignment of 0.
pub fn pack(problem: &Problem, least: u64, enough: u64) -> Solution {
    let whole = Compressed::new(problem);
    let least = whole.bound().max(least / problem.alignment);
    let enough = least.max(enough / problem.alignment);
    let peeled = Peeled::new(&whole, least);
    let cheap = Attempts::new(&peeled.core, least);
    let mut core = cheap.best().to_vec();
    if peeled.core.peak(&core) > enough {
        search_hot_first(&peeled.core, enough, 1, &mut core);
        if peeled.core.peak(&core) > enough {
            cheap.repair(enough, &mut core);
        }
        let peak = peeled.core.peak(&core);
        let is_far = peak > enough + 2 * (enough - least);
        if is_far && !is_hopeless(peak, enough) {
            search_hot_first(&peeled.core, enough, PATIENCE, &mut core);
        }
    }
    whole.solution(&push_down(&whole, &peeled.complete(&whole, &core)))
}

/// Returns the best of the cheap attempts, within a few milliseconds. `pack` is never higher. Deterministic. Panics as
/// `pack`.
pub fn pack_quickly(problem: &Problem, enough: u64) -> Solution {
    let whole = Compressed::new(problem);
    let enough = whole.bound().max(enough / problem.alignment);
    let peeled = Peeled::new(&whole, whole.bound());
    let core = attempts(&peeled.core, enough);
    whole.solution(&push_down(&whole, &peeled.complete(&whole, &core)))
}

fn is_hopeless(peak: u64, enough: u64) -> bool {
    peak > enough + enough / HOPELESS
}

/// Replaces `best` by a packing under the capacity, or by a lower one, if it finds one.
fn search_hot_first(problem: &Compressed, capacity: u64, patience: u64, best: &mut Vec<u64>) {
    let parts: Vec<Part> = HOT_PERCENTS.iter().map(|&percent| Part::hot(problem, capacity, percent)).collect();
    let mut parts: Vec<Part> = parts.iter().map(Part::merged).chain(parts.iter().cloned()).collect();
    parts.dedup_by_key(|part| part.problem.buffers.len());
    parts.retain(|part| !part.problem.buffers.is_empty());
    let mut searches: Vec<HotSearch> = parts.iter().map(HotSearch::new).collect();
    let all = Work { search: WORK.search * patience, place: WORK.place * patience };
    let checked = Work { search: all.search - all.search / CHECK_AFTER, place: all.place - all.place / CHECK_AFTER };
    let mut left = all;
    for seed in 0..STRATEGIES {
        for searches in searches.chunks_mut(PARALLEL_PARTS) {
            let may_stop = left.search < checked.search || left.place < checked.place;
            if may_stop && is_hopeless(problem.peak(best), capacity) {
                return;
            }
            let results = searches.par_iter_mut().map(|search| search.pack_around(problem, capacity, seed, left));
            for (offsets, spent) in results.collect::<Vec<_>>() {
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

/// Remaining work, or work done.
#[derive(Clone, Copy)]
struct Work {
    search: u64,
    place: u64,
}

impl Work {
    fn without(self, spent: Self) -> Self {
        Self { search: self.search.saturating_sub(spent.search), place: self.place.saturating_sub(spent.place) }
    }
}

/// Some of a problem's buffers.
#[derive(Clone)]
struct Part {
    /// Only these buffers; `merged` joins those with equal lifespans.
    problem: Compressed,
    /// For each of its buffers the stacked buffers that it consists of: indices in the whole problem, and sizes.
    members: Vec<Vec<(usize, u64)>>,
}

impl Part {
    /// The buffers that are live where the load is within `percent` of the capacity.
    fn hot(problem: &Compressed, capacity: u64, percent: u64) -> Self {
        let lowest = capacity - capacity / 100 * percent;
        let is_hot = |buffer: &CompressedBuffer| problem.loads[buffer.columns()].iter().any(|&load| load >= lowest);
        let buffers = problem.buffers.iter().zip(0u32..);
        let hot: Vec<u32> = buffers.filter(|(buffer, _)| percent == 100 || is_hot(buffer)).map(|(_, i)| i).collect();
        let part = problem.part(&hot);
        let members = part.indices.iter().zip(&part.buffers).map(|(&i, buffer)| vec![(i, buffer.size)]).collect();
        Self { problem: part, members }
    }

    /// The same part with buffers of equal lifespan merged into one. This rarely excludes a good packing, and the
    /// search is much faster.
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

/// Packs all buffers around `placed`: returns the first packing under the capacity or else the lowest, and the work
/// done. Buffers that exceed the capacity move to the front of the order, as in `heuristic.rs`.
fn around(problem: &Compressed, placed: &[(usize, u64)], capacity: u64, work: u64) -> (Vec<u64>, u64) {
    let buffers = &problem.buffers;
    let mut offsets = vec![0; buffers.len()];
    let mut is_placed = vec![false; buffers.len()];
    for &(buffer, offset) in placed {
        (offsets[buffer], is_placed[buffer]) = (offset, true);
    }
    let mut placer = Placer::default();
    let mut best = None;
    for order in ORDERS {
        let mut rest = order.sorted(problem);
        rest.retain(|&buffer| !is_placed[buffer as usize]);
        for _ in 0..REPAIRS {
            if best.is_some() && placer.work >= work {
                break;
            }
            placer.start(buffers, placed.iter().copied());
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

/// The search of one part. It starts only if the remaining work is enough to finish it.
struct HotSearch<'a> {
    part: &'a Part,
    search: Option<Search<'a>>,
    cost_of_step: u64,
}

impl<'a> HotSearch<'a> {
    fn new(part: &'a Part) -> Self {
        Self { part, search: None, cost_of_step: part.problem.buffers.iter().map(CompressedBuffer::width).sum() }
    }

    /// Searches the part, and packs the whole problem around it if the part fits the capacity. Returns the packing and
    /// the work done.
    fn pack_around(&mut self, problem: &Compressed, capacity: u64, seed: u64, left: Work) -> (Option<Vec<u64>>, Work) {
        let (is_found, search) = self.run(capacity, seed, left.search);
        if !is_found {
            return (None, Work { search, place: 0 });
        }
        let (offsets, place) = around(problem, &self.placed(), capacity, left.place);
        (Some(offsets), Work { search, place })
    }

    /// Returns whether all buffers of the part are under the capacity now, and the work done.
    fn run(&mut self, capacity: u64, seed: u64, work: u64) -> (bool, u64) {
        // A run without a wrong decision takes one step per buffer.
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

    /// The part's buffers and their offsets.
    fn placed(&self) -> Vec<(usize, u64)> {
        let offsets = self.search.iter().flat_map(|search| &search.packing.offsets);
        let mut placed = Vec::new();
        for (members, &bottom) in self.part.members.iter().zip(offsets) {
            let mut offset = bottom;
            for &(buffer, size) in members {
                placed.push((buffer, offset));
                offset += size;
            }
        }
        placed
    }
}
