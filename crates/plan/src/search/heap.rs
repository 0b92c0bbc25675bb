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
use super::{FEW, FITS, HOST_COST, shortfall};
use crate::Budget;
use crate::candidate::{Candidate, Programs, Settings, predicted_step};
use crate::layout::{Layout, lacks_at_least};
use crate::request::{PlanError, Request};
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
    /// A lower bound on the cost of each point, and which budgets lack bytes for it, in the order of [`Profile::index_of`].
    bounds: Vec<(f64, [bool; 2])>,
    /// The points with the most room; see [`Search::roomiest`].
    roomiest: Vec<(f64, Point)>,
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
        let (mut bounds, mut roomiest) = (Vec::new(), Vec::<(f64, Point)>::new());
        profile.visit(|point, at_least| {
            let cost = cost(at_least.step, profile.uses_of_host(point));
            let lacks = request.budget.lacking(at_least.bytes);
            bounds.push((cost, lacks.map(|lacks| lacks > Bytes::ZERO)));
            let room = if lacks == FITS { room(request.budget, at_least.bytes) } else { -shortfall(lacks) };
            if roomiest.len() < FEW || room > roomiest[FEW - 1].0 {
                let place = roomiest.partition_point(|(other, _)| *other >= room);
                roomiest.insert(place, (room, point));
                roomiest.truncate(FEW);
            }
        });
        Self { profile, bounds, roomiest }
    }

    /// The bound on a point's cost, if it is a point and may fit.
    fn open(&self, point: Point) -> Option<f64> {
        let (cost, lacks) = self.bounds[self.profile.index_of(point)?];
        (lacks == [false; 2]).then_some(cost)
    }
}

/// The smallest part that arenas of these sizes leave of a budget.
fn room(budget: Budget, bytes: [u64; 2]) -> f64 {
    let [device, host] = Budget::needed(bytes, budget.host().is_none());
    let left = |needed: Bytes, budget: Bytes| 1.0 - needed.as_f64() / budget.as_f64().max(1.0);
    left(device, budget.device()).min(budget.host().map_or(1.0, |budget| left(host, budget)))
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
        let state_is_too_large = whole.states().all(|state| request.budget.lacking(state) != FITS);
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

    /// Whether a budget rejects a point of lower cost: `memory` is 0 for the device, 1 for the host.
    pub(super) fn is_limited(&self, memory: usize, cost: f64) -> Result<bool, PlanError> {
        let of_bounded = |bounded: &Bounded| {
            let lacking = bounded
                .profile
                .points()
                .zip(&bounded.bounds)
                .filter(|(_, (bound, lacks))| lacks[memory] && *bound < cost);
            lacking
                .map(|(point, (cost, _))| Reverse(Waiting { cost: *cost, stage: Stage::Bounded, point }))
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

    /// The points with the most room, and that room: the part of the budget that they leave, or their shortfall as a
    /// negative number.
    pub(super) fn roomiest(&self) -> Vec<(f64, Point)> {
        let mut roomiest = self.bounded.iter().flat_map(|bounded| bounded.roomiest.iter().copied()).collect::<Vec<_>>();
        roomiest.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        roomiest.truncate(FEW);
        roomiest
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
            let points = bounded.profile.points().zip(&bounded.bounds).filter(|(_, (_, lacks))| *lacks == [false; 2]);
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
            Ok(layout) => Outcome::Fits(Box::new(Best { candidate, layout, step, cost: waiting.cost })),
            Err(_) => Outcome::Rejected(point),
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
        let may_fit = self.of(point).open(point).is_some() && lacks_at_least(request, &candidate.graph) == FITS;
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

/// What became of a point that came out of the heap.
enum Outcome {
    /// It goes back with a closer bound.
    Waits(Waiting),
    Rejected(Point),
    Fits(Box<Best>),
}

/// By cost; of those that cost alike, the one that comes first in its [`Point`]'s order.
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
