//! Choosing a configuration: the one with the shortest predicted step whose plan fits. Each candidate's real graph is
//! built and its real arena packed before it is accepted; no formula decides what fits.
//!
//! ```text
//!   chains, by the step of their first rung ──►      the first rung fits: nothing in this chain is faster
//!     │                                              it does not, but the last does: bisected for the first that fits
//!     ▼                                              the last does not either: nor do larger micro-batches' chains
//!   until the next chain's first rung is slower than the best so far
//! ```
//!
//! More budget never gives a slower plan: the chains don't depend on budgets, what fits in less fits in more, so each
//! chain's answer only moves towards its first rung, which is its fastest; and the best answer of all is taken.

use crate::candidates::{
    Candidate, Settings, candidate, lacking, least, micro_batches, offloads, plan_candidate, plan_if_fits, rungs,
    scratches, settings,
};
use crate::layout::staying;
use crate::levers::{Recompute, divisors};
use crate::nearest::{Nearest, nearest_that_fit};
use crate::plan::Plan;
use crate::request::{PlanError, Request};
use graph::Graph;
use serde::Serialize;
use units::{Bytes, Seconds};

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

/// The constraint that a plan is bound by.
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
    request.check()?;
    let mut search = fastest(request)?;
    if let Some(best) = search.best.take() {
        return search.found(best).map(Ok);
    }
    let mut smallest: Option<Plan> = None;
    let over = |plan: &Plan| lacking(request, [plan.peak_bytes, plan.host_bytes]).into_iter().sum::<Bytes>();
    for settings in least(request) {
        let plan = plan_candidate(request, &search.built(settings)?);
        if smallest.as_ref().is_none_or(|s| (over(&plan), plan.host_bytes) < (over(s), s.host_bytes)) {
            smallest = Some(plan);
        }
    }
    let plan = smallest.expect("a request has at least one configuration");
    let [short, host_short] = lacking(request, [plan.peak_bytes, plan.host_bytes]);
    let nearest = nearest_that_fit(request)?;
    Ok(Err(Box::new(Misfit { plan, short, host_short, nearest, candidates: search.tried })))
}

/// The predicted step and the settings of the fastest plan that fits, and what it takes.
pub(crate) fn fastest_that_fits(request: &Request) -> Result<Option<(Settings, Seconds, Plan)>, PlanError> {
    request.check()?;
    let best = fastest(request)?.best;
    Ok(best.map(|(candidate, plan)| (candidate.settings, candidate.step, plan)))
}

/// Whether anything that the request leaves open makes it fit. Tries only what takes the least.
pub(crate) fn can_fit(request: &Request) -> Result<bool, PlanError> {
    request.check()?;
    for settings in least(request) {
        if plan_if_fits(request, &candidate(request, settings)?).is_ok() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Configurations that differ only in what is computed anew.
struct Chain {
    micro_batch: usize,
    offload: f64,
    /// Index of the scratch, and its sizes.
    scratch: (usize, (usize, usize)),
    /// Predicted step of the first rung, the fastest.
    step: Seconds,
}

struct Search<'r> {
    request: &'r Request,
    rungs: Vec<Recompute>,
    best: Option<(Candidate, Plan)>,
    /// Whether the budget of the device, of the host, kept a faster configuration out.
    kept_out: [bool; 2],
    tried: usize,
}

fn fastest(request: &Request) -> Result<Search<'_>, PlanError> {
    let mut search = Search { request, rungs: rungs(request), best: None, kept_out: [false; 2], tried: 0 };
    let chains = search.chains()?;
    // Indices of chains of which nothing fits.
    let mut hopeless = Vec::<&Chain>::new();
    for chain in &chains {
        if search.best.as_ref().is_some_and(|(best, _)| best.step <= chain.step) {
            break;
        }
        if !hopeless.iter().any(|smaller| search.takes_more(chain, smaller)) && !search.climb(chain)? {
            hopeless.push(chain);
        }
    }
    Ok(search)
}

impl Search<'_> {
    /// All chains, by the step of their first rung; but those whose weights, gradients and moments alone don't fit.
    fn chains(&mut self) -> Result<Vec<Chain>, PlanError> {
        let request = self.request;
        let mut chains = Vec::new();
        for offload in offloads(request) {
            // What stays is the same for all micro-batches that accumulate gradients.
            let mut too_large = false;
            for micro_batch in micro_batches(request) {
                if too_large && micro_batch < request.global_batch {
                    continue;
                }
                for scratch in scratches(request, micro_batch).into_iter().enumerate() {
                    let first = self.built(settings(request, micro_batch, offload, scratch.1, self.rungs[0]))?;
                    let lacks = lacking(request, staying(&first.graph, &request.targets));
                    if lacks != [Bytes::ZERO; 2] {
                        self.keep_out(lacks);
                        too_large = true;
                        break;
                    }
                    chains.push(Chain { micro_batch, offload, scratch, step: first.step });
                }
            }
        }
        chains.sort_by(|a, b| a.step.0.total_cmp(&b.step.0));
        Ok(chains)
    }

    /// Takes a chain's first rung that fits, if it is faster than the best so far. Whether any may fit.
    fn climb(&mut self, chain: &Chain) -> Result<bool, PlanError> {
        let first = self.rung(chain, 0)?;
        match plan_if_fits(self.request, &first) {
            Ok(plan) => {
                self.offer(first, plan);
                return Ok(true);
            }
            Err(lacks) => self.keep_out(lacks),
        }
        let (mut too_few, mut enough) = (0, self.rungs.len() - 1);
        if enough == 0 {
            return Ok(false);
        }
        let last = self.rung(chain, enough)?;
        let Ok(plan) = plan_if_fits(self.request, &last) else { return Ok(false) };
        let mut found = (last, plan);
        while enough - too_few > 1 {
            let middle = too_few + (enough - too_few) / 2;
            let rung = self.rung(chain, middle)?;
            match plan_if_fits(self.request, &rung) {
                Ok(plan) => (enough, found) = (middle, (rung, plan)),
                // What does fit is further on, and slower still.
                Err(_) if self.best.as_ref().is_some_and(|(best, _)| best.step <= rung.step) => return Ok(true),
                Err(_) => too_few = middle,
            }
        }
        self.offer(found.0, found.1);
        Ok(true)
    }

    /// Whether a chain takes more at the least than another, which differs in nothing else.
    fn takes_more(&self, chain: &Chain, smaller: &Chain) -> bool {
        let accumulates = |chain: &Chain| chain.micro_batch < self.request.global_batch;
        chain.offload == smaller.offload
            && accumulates(chain)
            && accumulates(smaller)
            && chain.micro_batch >= smaller.micro_batch
            && chain.scratch.0 <= smaller.scratch.0
    }

    fn rung(&mut self, chain: &Chain, rung: usize) -> Result<Candidate, PlanError> {
        let Chain { micro_batch, offload, scratch, .. } = *chain;
        self.built(settings(self.request, micro_batch, offload, scratch.1, self.rungs[rung]))
    }

    fn built(&mut self, settings: Settings) -> Result<Candidate, PlanError> {
        self.tried += 1;
        candidate(self.request, settings)
    }

    fn offer(&mut self, candidate: Candidate, plan: Plan) {
        if self.best.as_ref().is_none_or(|(best, _)| candidate.step < best.step) {
            self.best = Some((candidate, plan));
        }
    }

    fn keep_out(&mut self, lacks: [Bytes; 2]) {
        for (kept_out, lacks) in self.kept_out.iter_mut().zip(lacks) {
            *kept_out |= lacks > Bytes::ZERO;
        }
    }

    fn found(mut self, (best, plan): (Candidate, Plan)) -> Result<Found, PlanError> {
        let Candidate { settings, graph, step } = best;
        let larger = divisors(self.request.global_batch).into_iter().find(|&d| d > settings.micro_batch);
        let next_larger = match larger {
            Some(micro_batch) => {
                let larger = self.built(Settings { micro_batch, ..settings })?;
                Some((micro_batch, plan_candidate(self.request, &larger).peak()))
            }
            None => None,
        };
        let bound = match self.kept_out {
            [false, false] => Bound::Nothing,
            [true, false] => Bound::Device,
            [false, true] => Bound::Host,
            [true, true] => Bound::DeviceAndHost,
        };
        Ok(Found { graph, plan, settings, step, bound, next_larger, candidates: self.tried })
    }
}
