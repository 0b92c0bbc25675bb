//! Choosing a configuration: the one of the lowest cost whose plan fits, or the reason why none does.
//!
//! ```text
//!   space.rs, choices.rs   the points to choose from, which no budget changes
//!   build.rs, between.rs   the graph of each point
//!   profile/               lower bounds on the bytes and the seconds of each; points whose bytes don't fit are rejected
//!   heap.rs                the first point by cost whose arena packs
//!   nearest.rs             changes that make a run fit which does not
//! ```
//!
//! A larger budget rejects a subset of what a smaller one rejects, so it never gives a plan of higher cost.

mod between;
mod build;
mod choices;
mod closure;
mod heap;
mod hull;
mod nearest;
mod profile;
mod space;
#[cfg(test)]
mod tests;

use crate::base_graph::Programs;
use crate::candidate::{Candidate, plan_candidate, plan_layout};
use crate::layout::{Attempt, Layout};
use crate::levers::{divisors, in_tiles};
use crate::plan::Plan;
use crate::request::{PlanError, Request};
use crate::settings::Settings;
use build::Builder;
use heap::{Best, Roomy, Search};
pub use nearest::Nearest;
use nearest::nearest_that_fit;
use plimsoll_graph::{Graph, MemoryId, MemorySet, PerMemory};
use plimsoll_units::{Bytes, Seconds};
use rayon::prelude::*;
use space::Fineness;

/// A plan that fits.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The graph that it places.
    pub graph: Graph,
    /// The plan.
    pub plan: Plan,
    /// Its configuration.
    pub settings: Settings,
    /// Predicted time of a step.
    pub step: Seconds,
    /// The memories whose budgets reject configurations of lower cost. None if nothing that the request leaves open costs
    /// less.
    pub limited_by: MemorySet,
    /// The next larger micro-batch and the bytes that it would need; `None` if this one is the whole global batch.
    pub next_larger: Option<(usize, Bytes)>,
    /// How many graphs were built.
    pub candidates: usize,
}

impl Found {
    /// Predicted tokens trained on in a second.
    pub fn tokens_per_s(&self) -> f64 {
        self.plan.tokens_per_step() as f64 / self.step.0
    }
}

/// The run does not fit: a value, not a failure.
#[derive(Debug, Clone, PartialEq)]
pub struct Misfit {
    /// The smallest plan that the request allows, which is too large.
    pub plan: Plan,
    /// Bytes that the budget of each memory lacks.
    pub short: PerMemory<Bytes>,
    /// Changes that make it fit: those that keep the result first, of these the one that adds the least time.
    pub nearest: Vec<Nearest>,
    /// How many graphs were built.
    pub candidates: usize,
}

impl Misfit {
    /// The most bytes that the budget of any memory lacks.
    pub fn largest_short(&self) -> Bytes {
        self.short.values().copied().max().unwrap_or(Bytes::ZERO)
    }
}

/// What each use of the host (an optimizer that is offloaded, activations that are) adds to a plan's cost, as a part of its
/// predicted step. Predictions are off by more than that, so a plan that gains less is not worth its transfers.
const HOST_COST: f64 = 0.004;

/// Points that are packed to see whether anything fits, or to find the smallest plan.
const FEW: usize = 8;

/// How far a plan is from a budget that lacks these bytes. The host's memory can be extended, and costs a quarter of a
/// card's.
fn shortfall(lacking: &PerMemory<Bytes>) -> f64 {
    lacking
        .iter()
        .map(|(id, lacking)| if id == MemoryId::DEVICE { lacking.as_f64() } else { lacking.as_f64() / 4.0 })
        .sum()
}

/// Finds a plan within the request's budgets. The outer error is for requests that make no sense; a run that does not
/// fit is `Ok(Err(misfit))`.
pub fn search(request: &Request) -> Result<Result<Found, Box<Misfit>>, PlanError> {
    let builder = Builder::new(request);
    let search = Search::new(&builder, Fineness::PLAN)?;
    match (search.cheapest()?, in_tiles(request)) {
        (Some(best), _) => found(&search, best).map(Ok),
        (None, Some(tiled)) => self::search(&tiled),
        (None, None) => {
            let misfit = misfit(&search)?;
            // The bound on the bytes of an encoder's plan can be above them, by up to one part in a hundred.
            let fitting = if misfit.largest_short() == Bytes::ZERO { search.roomy_that_fits()? } else { None };
            match fitting {
                Some(best) => found(&search, best).map(Ok),
                None => Ok(Err(Box::new(misfit))),
            }
        }
    }
}

/// The predicted step of the plan that [`search`] finds; `None` if nothing fits.
pub(crate) fn shortest_step(request: &Request) -> Result<Option<Seconds>, PlanError> {
    match (best(&Builder::new(request), Fineness::PLAN)?, in_tiles(request)) {
        (None, Some(tiled)) => shortest_step(&tiled),
        (best, _) => Ok(best.map(|best| best.step)),
    }
}

/// Whether anything fits that the request leaves open. Packs only the few points with the most room.
pub fn can_fit(request: &Request) -> Result<bool, PlanError> {
    let fits = |request: &Request| fits_at(&Builder::new(request), Fineness::HINT);
    Ok(fits(request)? || in_tiles(request).map_or(Ok(false), |tiled| fits(&tiled))?)
}

/// The same on axes of this fineness.
fn fits_at(builder: &Builder, fineness: Fineness) -> Result<bool, PlanError> {
    let request = builder.request;
    let search = Search::new(builder, fineness)?;
    let mut nearest = None::<(f64, Candidate)>;
    for Roomy { point, .. } in search.roomiest().into_iter().filter(|roomy| roomy.room.least >= 0.0) {
        let candidate = builder.candidate(search.smallest_settings(point), Programs::All)?;
        match Layout::attempt(request, &candidate.graph) {
            Attempt::Fits(_) => return Ok(true),
            Attempt::Near(lacking) => {
                let short = shortfall(&lacking);
                if nearest.as_ref().is_none_or(|(least, _)| short < *least) {
                    nearest = Some((short, candidate));
                }
            }
            Attempt::Far => {}
        }
    }
    // Only the nearest is worth the work of a full packing.
    Ok(nearest.is_some_and(|(_, candidate)| Layout::packed_within(request, &candidate.graph).is_some()))
}

fn best(builder: &Builder, fineness: Fineness) -> Result<Option<Best>, PlanError> {
    Search::new(builder, fineness)?.cheapest()
}

fn found(search: &Search, Best { candidate, layout, step, cost }: Best) -> Result<Found, PlanError> {
    let (builder, settings) = (search.builder, candidate.settings);
    let request = builder.request;
    let next_larger = || {
        let larger = divisors(request.global_batch).into_iter().find(|&d| d > settings.micro_batch);
        let bytes_of = |micro_batch| {
            let larger = builder.candidate(Settings { micro_batch, ..settings }, Programs::All)?;
            let arenas = Layout::new(&larger.graph, &request.targets).arenas();
            Ok::<_, PlanError>((micro_batch, Bytes(arenas[MemoryId::DEVICE])))
        };
        larger.map(bytes_of).transpose()
    };
    let limits = || {
        let ids = candidate.graph.memories.ids().collect::<Vec<_>>();
        let limiting = ids.into_par_iter().map(|id| Ok((id, search.is_limited(id, cost)?)));
        let limiting = limiting.collect::<Result<Vec<_>, PlanError>>()?;
        Ok::<_, PlanError>(limiting.into_iter().filter(|(_, is_limiting)| *is_limiting).map(|(id, _)| id).collect())
    };
    let improved = || layout.improved(request, &candidate.graph);
    let ((next_larger, limited_by), layout) = rayon::join(|| rayon::join(next_larger, limits), improved);
    let limited_by = limited_by?;
    let plan = plan_layout(request, &candidate, &layout);
    let (next_larger, candidates) = (next_larger?, search.candidates());
    Ok(Found { graph: candidate.graph, plan, settings, step, limited_by, next_larger, candidates })
}

fn misfit(search: &Search) -> Result<Misfit, PlanError> {
    let (nearest, plan) = rayon::join(|| nearest_that_fit(search), || smallest(search));
    let (nearest, plan) = (nearest?, plan?);
    let short = search.builder.request.budget.lacking(&plan.arenas());
    Ok(Misfit { plan, short, nearest, candidates: search.candidates() })
}

/// The plan with the smallest shortfall among the points with the most room; the one with fewer host bytes if two are equal.
/// Host memory counts less than a card's: see [`shortfall`].
fn smallest(search: &Search) -> Result<Plan, PlanError> {
    let (builder, request) = (search.builder, search.builder.request);
    let plan = |Roomy { point, .. }: Roomy| {
        let plan = plan_candidate(request, &builder.candidate(search.smallest_settings(point), Programs::All)?);
        Ok((shortfall(&request.budget.lacking(&plan.arenas())), plan.host(), plan))
    };
    let plans = search.roomiest().into_par_iter().map(plan).collect::<Result<Vec<_>, PlanError>>()?;
    let smallest = plans.into_iter().min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    Ok(smallest.expect("a request has at least one point").2)
}
