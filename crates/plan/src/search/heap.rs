//! The point of the lowest cost that fits: a heap of points by lower bounds on their cost, which get closer until the
//! first of them is packed.
//!
//! ```text
//!   bounded    its bound is raised to the cost of points that do less; then its own graph is built and timed
//!   timed      its arena is packed
//!   packed     it is the answer: no bound that is left is lower
//! ```
//!
//! The host updates while the next step begins, unless only without that a point's bytes on the host fit.
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
use crate::settings::{Levers, Settings};
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
    pub(super) room: Room,
}

/// What a point leaves of the budget. Of two points that leave as much of the scarcest memory, the one that leaves more of
/// the others has more room.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub(super) struct Room {
    /// The smallest part of any limit that is left, or the shortfall as a negative number.
    pub(super) least: f64,
    /// The sum of these parts over all limits; 0 if the point falls short.
    all: f64,
}

/// What is known of a point whose graph was built.
#[derive(Clone, Copy)]
struct Timed {
    /// Predicted.
    step: Seconds,
    /// Whether the bytes that are live at once fit.
    may_fit: bool,
    /// Whether they fit only if the host updates at the end of a step.
    host_update_at_end: bool,
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
            let room = if lacking.is_empty() {
                Room::of(&request.budget, &needed)
            } else {
                Room { least: -shortfall(&short), all: 0.0 }
            };
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

impl Room {
    /// What is left if the limits have to be as large as this.
    fn of(budget: &Budget, needed: &PerMemory<Bytes>) -> Self {
        let left = |id| Some(1.0 - needed[id].as_f64() / budget.own(id)?.as_f64().max(1.0));
        needed.ids().filter_map(left).fold(Self { least: 1.0, all: 0.0 }, |room, left| Self {
            least: room.least.min(left),
            all: room.all + left,
        })
    }
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
        if others.len() > 1 {
            builder.build_ends()?;
        }
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
        let more_room = |a: &Roomy, b: &Roomy| b.room.partial_cmp(&a.room).expect("budgets are numbers");
        roomiest.sort_by(|a, b| more_room(a, b).then(a.point.cmp(&b.point)));
        roomiest.truncate(FEW);
        roomiest
    }

    /// The cheapest of the points with the most room that fits, whatever the bound on its bytes.
    pub(super) fn roomy_that_fits(&self) -> Result<Option<Best>, PlanError> {
        let request = self.builder.request;
        let mut fitting = Vec::new();
        for Roomy { point, .. } in self.roomiest() {
            let candidate = self.builder.candidate(self.timed_settings(point)?, Programs::All)?;
            if let Some(layout) = Layout::packed_within(request, &candidate.graph) {
                let step = self.time(point)?.step;
                let cost = cost(step, self.of(point).profile.uses_of_host(point));
                fitting.push(Best { candidate, layout, step, cost });
            }
        }
        Ok(fitting.into_iter().min_by(|a, b| a.cost.total_cmp(&b.cost)))
    }

    fn settings(&self, point: Point) -> Settings {
        self.of(point).profile.settings(self.builder.request, point)
    }

    /// The settings that are timed as a point.
    fn timed_settings(&self, point: Point) -> Result<Settings, PlanError> {
        Ok(with_host_update(self.settings(point), self.time(point)?.host_update_at_end))
    }

    /// The settings of a point that take the least memory.
    pub(super) fn smallest_settings(&self, point: Point) -> Settings {
        with_host_update(self.settings(point), true)
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
        let candidate = self.builder.candidate(self.timed_settings(point)?, Programs::All)?;
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
        let (request, is_open) = (self.builder.request, self.of(point).open(point).is_some());
        let lacking = |candidate: &Candidate| request.budget.lacking(&at_least(&candidate.graph, &request.targets));
        let fits = |lacking: &PerMemory<Bytes>| lacking.values().all(|lacking| *lacking == Bytes::ZERO);
        // Where a step has several micro-batches, gradients outlive it anyway.
        let settings = self.settings(point);
        let may_be_at_end = is_open && settings.micro_batch == request.global_batch;
        let if_later = self.of(point).profile.host_bytes_if_updated_later(point);
        let mut host_update_at_end = may_be_at_end && request.budget.host().is_some_and(|host| if_later > host.0);
        let mut candidate = self.builder.candidate(with_host_update(settings, host_update_at_end), Programs::OfStep)?;
        let first = lacking(&candidate);
        let mut may_fit = is_open && fits(&first);
        if may_be_at_end && !host_update_at_end && !may_fit && first[MemoryId::DEVICE] == Bytes::ZERO {
            let at_end = self.builder.candidate(self.smallest_settings(point), Programs::OfStep)?;
            if fits(&lacking(&at_end)) {
                (candidate, may_fit, host_update_at_end) = (at_end, true, true);
            }
        }
        let known = Timed { step: predicted_step(request, &candidate), may_fit, host_update_at_end };
        Ok(*self.timed().entry(point).or_insert(known))
    }

    fn timed(&self) -> std::sync::MutexGuard<'_, FxHashMap<Point, Timed>> {
        self.timed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn with_host_update(settings: Settings, host_update_at_end: bool) -> Settings {
    Settings { levers: Levers { host_update_at_end, ..settings.levers }, ..settings }
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
