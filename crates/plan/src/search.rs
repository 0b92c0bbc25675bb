//! Choosing a configuration: the one with the shortest predicted step whose plan fits, or why there is none. How it is
//! found is in `fastest.rs`.

use crate::candidates::{Settings, plan_layout};
use crate::choice::step_at_least;
use crate::fastest::{Best, Fastest};
use crate::layout::Layout;
use crate::levers::divisors;
use crate::nearest::{Nearest, nearest_that_fit};
use crate::parts::Detail;
use crate::plan::Plan;
use crate::request::{PlanError, Request};
use plimsoll_graph::Graph;
use plimsoll_units::{Bytes, Seconds};
use serde::Serialize;

/// A plan that fits.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The graph that it places.
    pub graph: Graph,
    /// The plan.
    pub plan: Plan,
    /// The configuration that it is of.
    pub settings: Settings,
    /// Predicted time of a step.
    pub step: Seconds,
    /// What kept faster configurations out.
    pub bound: Bound,
    /// No plan that fits is faster by more than this part of its own step, as far as steps are predicted: of all that recompute
    /// any result at most once, but not what blocks hand to each other, and send anything to the host where that is another
    /// memory. None where what is recomputed was asked for.
    pub slower_at_most: Option<f64>,
    /// The next larger micro-batch and the bytes that it would need, unless this one is the whole global batch.
    pub next_larger: Option<(usize, Bytes)>,
    /// How many configurations were built.
    pub candidates: usize,
}

impl Found {
    /// Predicted tokens trained on in a second.
    pub fn tokens_per_s(&self) -> f64 {
        self.plan.tokens_per_step() as f64 / self.step.0
    }
}

/// What limits a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// None: nothing that was left open is faster, whatever the budget.
    Nothing,
    /// The budget of the device.
    Device,
    /// The budget of the host.
    Host,
    /// Both: some of what is faster lacks one, some the other.
    DeviceAndHost,
}

/// The run does not fit: a value, not a failure.
#[derive(Debug, Clone, PartialEq)]
pub struct Misfit {
    /// The smallest plan that was allowed, which is too large.
    pub plan: Plan,
    /// What the budget lacks; zero if only the host's does.
    pub short: Bytes,
    /// What the host's budget lacks.
    pub host_short: Bytes,
    /// Changes that make it fit: those that keep the result first, of these the one that costs the least time.
    pub nearest: Vec<Nearest>,
    /// How many configurations were built.
    pub candidates: usize,
}

/// Finds a plan under the request's budgets. The outer error is for requests that make no sense; a run that does not
/// fit is `Ok(Err(misfit))`.
pub fn search(request: &Request) -> Result<Result<Found, Box<Misfit>>, PlanError> {
    let mut fastest = Fastest::new(request, Detail::Full)?.search()?;
    if let Some(best) = fastest.best.take() {
        return found(fastest, best).map(Ok);
    }
    let (nearest, plan) = rayon::join(|| nearest_that_fit(&fastest), || fastest.smallest());
    let (nearest, plan) = (nearest?, plan?);
    let [short, host_short] = request.budget.lacking(plan.arenas());
    Ok(Err(Box::new(Misfit { plan, short, host_short, nearest, candidates: fastest.workshop.built() })))
}

/// The predicted step of the plan that [`search`] finds, if any fits.
pub(crate) fn shortest_step(request: &Request) -> Result<Option<Seconds>, PlanError> {
    Ok(Fastest::new(request, Detail::Full)?.search()?.best.map(|best| best.step))
}

fn found(search: Fastest, Best { candidate, layout, step, .. }: Best) -> Result<Found, PlanError> {
    let (workshop, settings) = (&search.workshop, candidate.settings);
    let next_larger = || {
        let larger = divisors(workshop.request.global_batch).into_iter().find(|&d| d > settings.micro_batch);
        let bytes_of = |micro_batch| {
            let larger = workshop.candidate(Settings { micro_batch, ..settings })?;
            let [device, _] = Layout::new(&larger.graph, &workshop.request.targets).arenas();
            Ok::<_, PlanError>((micro_batch, Bytes(device)))
        };
        larger.map(bytes_of).transpose()
    };
    let slower_at_most = || {
        let is_open = workshop.request.levers.recompute.is_none();
        let slower = || Ok::<_, PlanError>(step.0 / step_at_least(workshop, &settings, step)?.0 - 1.0);
        is_open.then(slower).transpose()
    };
    let improved = || layout.improved(workshop.request, &candidate.graph);
    let ((next_larger, slower_at_most), layout) = rayon::join(|| rayon::join(next_larger, slower_at_most), improved);
    let (next_larger, slower_at_most) = (next_larger?, slower_at_most?);
    let bound = match search.kept_out {
        [false, false] => Bound::Nothing,
        [true, false] => Bound::Device,
        [false, true] => Bound::Host,
        [true, true] => Bound::DeviceAndHost,
    };
    let candidates = workshop.built();
    let plan = plan_layout(workshop.request, &candidate, &layout);
    Ok(Found { graph: candidate.graph, plan, settings, step, bound, slower_at_most, next_larger, candidates })
}
