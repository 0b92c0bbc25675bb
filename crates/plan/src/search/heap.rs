//! The point of the lowest cost that fits: a heap of points by lower bounds on their cost, which get closer until the
//! first of them is packed.
//!
//! ```text
//!   bounded    its bound is raised to the cost of points that do less; then its own graph is built and timed
//!   timed      its arena is packed
//!   packed     it is the answer: no bound that is left is lower
//! ```
//!
//! A point costs as much as its predicted step or that of a point which does less, whichever is longer: so costs depend
//! on no budget, and the lowest one that fits in a budget is no lower than the lowest that fits in a larger one. A point
//! enters the heap when its neighbors below, which cost no more, are rejected. Points come out a few at a time and all threads work on them; how many does not
//! depend on the number of threads, so neither does the answer.

use super::build::Builder;
use super::profile::Profile;
use super::space::{Fineness, Point, Space, micro_batches};
use super::{FEW, HOST_COST, shortfall};
use crate::Budget;
use crate::base_graph::Programs;
use crate::candidate::{Candidate, predicted_step};
use crate::layout::{Layout, at_least};
use crate::request::{PlanError, Request};
use crate::settings::Settings;
use plimsoll_graph::{MemoryId, MemorySet, PerMemory};
use plimsoll_units::{Bytes, Seconds};
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::{Mutex, PoisonError};

/// Points that come out of the heap at a time.
const TOGETHER: usize = 4;

/// A point that fits.
pub(super) struct Best {
    pub(super) candidate: Candidate,
    pub(super) layout: Layout,
    /// Predicted.
    pub(super) step: Seconds,
    pub(super) cost: f64,
}

/// All points of a request, and what is known of them.
pub(super) struct Search<'b, 'r> {
    pub(super) builder: &'b Builder<'r>,
    /// By micro-batch, ascending; not all of them where weights, gradients and moments alone are too large.
    bounded: Vec<Bounded>,
    /// Whether weights, gradients and moments alone are too large.
    pub(super) state_is_too_large: bool,
    timed: Mutex<FxHashMap<Point, Timed>>,
}

/// The points of one micro-batch.
struct Bounded {
    profile: Profile,
    /// Of each point, in the order of [`Profile::index_of`].
    bounds: Vec<PointBound>,
    /// The points with the most room; see [`Search::roomiest`].
    roomiest: Vec<Roomy>,
}

/// What is known of a point before its graph is built.
struct PointBound {
    /// A lower bound on its cost.
    cost: f64,
    /// The memories whose budgets lack bytes for it.
    lacking: MemorySet,
}

/// A point with much room.
#[derive(Clone, Copy)]
pub(super) struct Roomy {
    pub(super) point: Point,
    /// The part of the budget that it leaves, or its shortfall as a negative number.
    pub(super) room: f64,
}

/// What is known of a point whose graph was built.
#[derive(Clone, Copy)]
struct Timed {
    /// Predicted.
    step: Seconds,
    /// Whether the bytes that are live at once fit.
    may_fit: bool,
}

impl Bounded {
    fn new(request: &Request, profile: Profile) -> Self {
        let (mut bounds, mut roomiest) = (Vec::new(), Vec::<Roomy>::new());
        profile.visit(|point, at_least| {
            let cost = cost(at_least.step, profile.uses_of_host(point));
            let needed = request.budget.needed(&at_least.bytes);
            let short = request.budget.lacking_of(&needed);
            let lacking =
                short.iter().filter(|(_, short)| **short > Bytes::ZERO).map(|(id, _)| id).collect::<MemorySet>();
            bounds.push(PointBound { cost, lacking });
            let room = if lacking.is_empty() { room(&request.budget, &needed) } else { -shortfall(&short) };
            if roomiest.len() < FEW || room > roomiest[FEW - 1].room {
                let index = roomiest.partition_point(|other| other.room >= room);
                roomiest.insert(index, Roomy { point, room });
                roomiest.truncate(FEW);
            }
        });
        Self { profile, bounds, roomiest }
    }

    /// The bound on a point's cost, if it is a point and may fit.
    fn open(&self, point: Point) -> Option<f64> {
        let PointBound { cost, lacking } = self.bounds[self.profile.index_of(point)?];
        lacking.is_empty().then_some(cost)
    }
}

/// The smallest part of any limit that is left if the limits have to be as large as this.
fn room(budget: &Budget, needed: &PerMemory<Bytes>) -> f64 {
    let left = |id| Some(1.0 - needed[id].as_f64() / budget.own(id)?.as_f64().max(1.0));
    needed.ids().filter_map(left).fold(1.0, f64::min)
}

/// What a plan costs in the comparison with others.
fn cost(step: Seconds, uses_of_host: usize) -> f64 {
    step.0 * (1.0 + HOST_COST * uses_of_host as f64)
}

impl<'b, 'r> Search<'b, 'r> {
    /// Errors: the request makes no sense.
    pub(super) fn new(builder: &'b Builder<'r>, fineness: Fineness) -> Result<Self, PlanError> {
        let request = builder.request;
        request.check()?;
        let first = builder.candidate(builder.plain(micro_batches(request)[0]), Programs::OfStep)?;
        let space = Space::new(request, fineness, &first.graph);
        let profile = |index: usize| Profile::new(builder, &space, fineness, index);
        // The whole batch at once keeps no gradients from one micro-batch to the next, so it has the smallest state.
        let last = space.micro_batches.len() - 1;
        let whole = profile(last)?;
        let state_is_too_large = !whole.states().any(|state| request.budget.holds(&state));
        let others = if state_is_too_large { 0..last.min(1) } else { 0..last };
        let profiles = others.into_par_iter().map(profile).chain(rayon::iter::once(Ok(whole)));
        let bounded =
            profiles.map(|profile| Ok(Bounded::new(request, profile?))).collect::<Result<Vec<_>, PlanError>>()?;
        Ok(Self { builder, bounded, state_is_too_large, timed: Mutex::default() })
    }

    /// How many graphs of points were built.
    pub(super) fn candidates(&self) -> usize {
        self.timed().len().max(1)
    }

    /// Whether the budget of a memory rejects a point of lower cost.
    pub(super) fn is_limited(&self, memory: MemoryId, cost: f64) -> Result<bool, PlanError> {
        let of_bounded = |bounded: &Bounded| {
            let lacking = bounded
                .profile
                .points()
                .zip(&bounded.bounds)
                .filter(|(_, bound)| bound.lacking.contains(memory) && bound.cost < cost);
            lacking
                .map(|(point, bound)| Reverse(Waiting { cost: bound.cost, stage: Stage::Bounded, point }))
                .collect::<Vec<_>>()
        };
        let mut heap = BinaryHeap::from(self.bounded.par_iter().flat_map_iter(of_bounded).collect::<Vec<_>>());
        while let Some(Reverse(next)) = heap.pop() {
            match self.closer(next)? {
                Waiting { cost: closer, .. } if closer >= cost => {}
                Waiting { stage: Stage::Timed(_), .. } => return Ok(true),
                closer => heap.push(Reverse(closer)),
            }
        }
        Ok(false)
    }

    /// The points with the most room.
    pub(super) fn roomiest(&self) -> Vec<Roomy> {
        let mut roomiest = self.bounded.iter().flat_map(|bounded| bounded.roomiest.iter().copied()).collect::<Vec<_>>();
        roomiest.sort_by(|a, b| b.room.total_cmp(&a.room).then(a.point.cmp(&b.point)));
        roomiest.truncate(FEW);
        roomiest
    }

    /// The cheapest of the points with the most room that fits, whatever the bound on its bytes.
    pub(super) fn roomy_that_fits(&self) -> Result<Option<Best>, PlanError> {
        let request = self.builder.request;
        let mut fitting = Vec::new();
        for Roomy { point, .. } in self.roomiest() {
            let candidate = self.builder.candidate(self.settings(point), Programs::All)?;
            if let Some(layout) = Layout::packed_within(request, &candidate.graph) {
                let step = self.time(point)?.step;
                let cost = cost(step, self.of(point).profile.uses_of_host(point));
                fitting.push(Best { candidate, layout, step, cost });
            }
        }
        Ok(fitting.into_iter().min_by(|a, b| a.cost.total_cmp(&b.cost)))
    }

    pub(super) fn settings(&self, point: Point) -> Settings {
        self.of(point).profile.settings(self.builder.request, point)
    }

    fn of(&self, point: Point) -> &Bounded {
        self.bounded.iter().find(|bounded| bounded.profile.has(point)).expect("a point of this search")
    }

    /// The point of the lowest cost that fits, if any does.
    pub(super) fn cheapest(&self) -> Result<Option<Best>, PlanError> {
        let open = |point: Point| {
            let waiting = |cost| Reverse(Waiting { cost, stage: Stage::Bounded, point });
            self.of(point).open(point).map(waiting)
        };
        let mut heap = self.first_points(open);
        let mut entered = FxHashSet::default();
        let mut best: Option<Best> = None;
        loop {
            let is_cheaper = |cost: f64| best.as_ref().is_none_or(|best| cost < best.cost);
            let mut now = Vec::with_capacity(TOGETHER);
            while now.len() < TOGETHER && heap.peek().is_some_and(|Reverse(next)| is_cheaper(next.cost)) {
                now.extend(heap.pop().map(|Reverse(next)| next));
            }
            if now.is_empty() {
                return Ok(best);
            }
            let outcomes = now.into_par_iter().map(|waiting| self.advance(waiting)).collect::<Result<Vec<_>, _>>()?;
            for outcome in outcomes {
                match outcome {
                    Outcome::Waits(waiting) => heap.push(Reverse(waiting)),
                    Outcome::Rejected(point) => {
                        let next = point.neighbors_above().filter(|next| entered.insert(*next));
                        heap.extend(next.filter_map(open));
                    }
                    Outcome::Fits(found) if best.as_ref().is_none_or(|best| found.cost < best.cost) => {
                        best = Some(*found)
                    }
                    Outcome::Fits(_) => {}
                }
            }
        }
    }

    /// Points none of whose neighbors with less on the host and more scratch may fit.
    fn first_points<W: Ord + Send>(&self, open: impl Fn(Point) -> Option<W> + Sync) -> BinaryHeap<W> {
        let of_bounded = |bounded: &Bounded| {
            let is_first = |point: Point| point.neighbors_below().all(|below| bounded.open(below).is_none());
            let points = bounded.profile.points().zip(&bounded.bounds).filter(|(_, bound)| bound.lacking.is_empty());
            points.map(|(point, _)| point).filter(|point| is_first(*point)).filter_map(&open).collect::<Vec<_>>()
        };
        self.bounded.par_iter().flat_map_iter(of_bounded).collect::<Vec<_>>().into()
    }

    fn advance(&self, waiting: Waiting) -> Result<Outcome, PlanError> {
        let (point, request) = (waiting.point, self.builder.request);
        let Stage::Timed(step) = waiting.stage else {
            let closer = self.closer(waiting)?;
            let may_fit = matches!(closer.stage, Stage::Bounded) || self.time(point)?.may_fit;
            return Ok(if may_fit { Outcome::Waits(closer) } else { Outcome::Rejected(point) });
        };
        let candidate = self.builder.candidate(self.settings(point), Programs::All)?;
        Ok(match Layout::within(request, &candidate.graph) {
            Some(layout) => Outcome::Fits(Box::new(Best { candidate, layout, step, cost: waiting.cost })),
            None => Outcome::Rejected(point),
        })
    }

    /// A point with a closer bound, or timed.
    fn closer(&self, waiting: Waiting) -> Result<Waiting, PlanError> {
        let (point, profile) = (waiting.point, &self.of(waiting.point).profile);
        let cost = |step: Seconds| cost(step, profile.uses_of_host(point)).max(waiting.cost);
        for less in profile.points_that_do_less(point) {
            let cost = cost(self.time(less)?.step);
            if cost > waiting.cost {
                return Ok(Waiting { cost, ..waiting });
            }
        }
        let Timed { step, .. } = self.time(point)?;
        Ok(Waiting { cost: cost(step), stage: Stage::Timed(step), point })
    }

    /// Builds the graph of a point, unless it was built before.
    fn time(&self, point: Point) -> Result<Timed, PlanError> {
        if let Some(known) = self.timed().get(&point) {
            return Ok(*known);
        }
        let request = self.builder.request;
        let candidate = self.builder.candidate(self.settings(point), Programs::OfStep)?;
        let may_fit =
            self.of(point).open(point).is_some() && request.budget.holds(&at_least(&candidate.graph, &request.targets));
        let known = Timed { step: predicted_step(request, &candidate), may_fit };
        Ok(*self.timed().entry(point).or_insert(known))
    }

    fn timed(&self) -> std::sync::MutexGuard<'_, FxHashMap<Point, Timed>> {
        self.timed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A point in the heap.
struct Waiting {
    /// A lower bound.
    cost: f64,
    stage: Stage,
    point: Point,
}

enum Stage {
    Bounded,
    /// With its predicted step.
    Timed(Seconds),
}

/// The result for a point that came out of the heap.
enum Outcome {
    /// It goes back with a closer bound.
    Waits(Waiting),
    Rejected(Point),
    Fits(Box<Best>),
}

/// By cost, and by the order of points if two cost the same.
impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        self.cost.total_cmp(&other.cost).then(self.point.cmp(&other.point))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Waiting {}
