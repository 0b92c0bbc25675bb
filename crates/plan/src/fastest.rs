//! The fastest configuration that fits. Each candidate's real graph is built and its real arena packed before it is
//! accepted; no formula decides what fits.
//!
//! ```text
//!   parts of the optimizer that no chain can have     left out, by what the configurations that take the least lack
//!   chains, by the step of their first rung ──►       the first rung fits: nothing in this chain is faster
//!     │                                               it does not, but the last may: bisected for the first that may,
//!     │                                               by what lives at once; that one is packed
//!     ▼                                               the last can't either: nor can larger micro-batches' chains
//!   until the next chain's first rung is slower than the best so far
//! ```
//!
//! More budget never gives a slower plan: the chains don't depend on budgets, what fits in less fits in more, so each
//! chain's answer only moves towards its first rung, which is its fastest; and the best answer of all is taken. Fewer
//! rows of scratch never make a step faster, so a chain with fewer begins no earlier than its sister with all of them.
//!
//! Chains are looked at on all threads, always so many at a time, and their answers are taken in order: which candidates
//! are built, and which wins, is the same on any number of threads.

use crate::candidates::{Candidate, least_scratch, micro_batches, offloads, rungs, scratches, settings, weights};
use crate::levers::Recompute;
use crate::plan::Plan;
use crate::request::{PlanError, Request};
use crate::workshop::{Trunk, Workshop};
use plimsoll_units::{Bytes, Seconds};
use rayon::prelude::*;

/// Chains that are looked at together.
const TOGETHER: usize = 2;

/// So few rungs are tried one by one.
const FEW_RUNGS: usize = 16;

const FITS: [Bytes; 2] = [Bytes::ZERO; 2];

/// A configuration that fits.
pub(crate) struct Best {
    pub(crate) candidate: Candidate,
    pub(crate) plan: Plan,
    /// Index of what is recomputed.
    rung: usize,
}

/// What a search comes to.
pub(crate) struct Fastest<'r> {
    pub(crate) workshop: Workshop<'r>,
    /// The fastest that fits, if any does.
    pub(crate) best: Option<Best>,
    /// Whether the budget of the device, of the host, kept a faster configuration out.
    pub(crate) kept_out: [bool; 2],
    /// Whether weights, gradients and moments alone are too much, wherever they lie.
    pub(crate) state_is_too_large: bool,
    rungs: Vec<Recompute>,
}

/// The predicted step of the fastest plan that fits, and the plan.
pub(crate) fn fastest_that_fits(request: &Request) -> Result<Option<(Seconds, Plan)>, PlanError> {
    let best = Fastest::search(request)?.best;
    Ok(best.map(|Best { candidate, plan, .. }| (candidate.step, plan)))
}

/// The predicted step of the fastest configuration with all the memory that it asks for, so that nothing is moved that
/// is not asked to be.
pub(crate) fn fastest_step(request: &Request) -> Result<Option<Seconds>, PlanError> {
    let search = Fastest::new(request)?;
    let steps = search.first_steps(&|_| vec![request.levers.optimizer_offload.unwrap_or(0.0)])?;
    Ok(steps.into_iter().map(|(_, _, step)| step).min_by(|a, b| a.0.total_cmp(&b.0)))
}

/// Whether anything that the request leaves open makes it fit. Tries only what may take the least.
pub(crate) fn can_fit(request: &Request) -> Result<bool, PlanError> {
    let search = Fastest::new(request)?;
    if search.weights_are_too_large() {
        return Ok(false);
    }
    for micro_batch in ends(request) {
        for rung in search.milestones().chain([0]) {
            let trunk = search.trunk_of(micro_batch, rung)?;
            for offload in offloads(request).into_iter().rev() {
                if search.workshop.plan_if_fits(&search.workshop.moved(trunk.copy(), offload)).is_ok() {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

/// The configuration that lacks the least of all that take the least, packed: the smallest plan of a run that does not
/// fit. Of those that lack alike, the one that takes less of the host.
pub(crate) fn smallest(request: &Request) -> Result<Plan, PlanError> {
    let search = Fastest::new(request)?;
    let of_end = |&micro_batch: &usize| {
        let trunk = search.least_trunk(micro_batch)?;
        let bound = |&offload: &f64| {
            let candidate = search.workshop.moved(trunk.copy(), offload);
            (lacks_in_all(search.workshop.lacks_at_least(&candidate)), candidate.settings)
        };
        Ok(offloads(request).par_iter().map(bound).collect::<Vec<_>>())
    };
    let bounds = ends(request).par_iter().map(of_end).collect::<Result<Vec<_>, PlanError>>()?;
    let mut bounds = bounds.into_iter().flatten().collect::<Vec<_>>();
    bounds.sort_by_key(|(lacks, _)| *lacks);
    let mut smallest: Option<(Bytes, Plan)> = None;
    for (at_least, settings) in bounds {
        if smallest.as_ref().is_some_and(|(lacks, _)| *lacks < at_least) {
            break;
        }
        let plan = crate::candidates::plan_candidate(request, &search.workshop.candidate(settings)?);
        let lacks = lacks_in_all(request.budget.lacking(plan.arenas()));
        if smallest.as_ref().is_none_or(|(least, s)| (lacks, plan.host_bytes) < (*least, s.host_bytes)) {
            smallest = Some((lacks, plan));
        }
    }
    Ok(smallest.expect("a request has at least one configuration").1)
}

fn lacks_in_all(lacks: [Bytes; 2]) -> Bytes {
    lacks.into_iter().fold(Bytes::ZERO, |sum, lacks| Bytes(sum.0.saturating_add(lacks.0)))
}

/// The smallest and the largest micro-batch, which take the least: a whole batch at once keeps no gradients from one
/// micro-batch to the next.
fn ends(request: &Request) -> Vec<usize> {
    let micro_batches = micro_batches(request);
    let mut ends = vec![micro_batches[0], micro_batches[micro_batches.len() - 1]];
    ends.dedup();
    ends
}

/// Configurations that differ only in what is recomputed.
struct Chain {
    micro_batch: usize,
    offload: f64,
    /// Index of the scratch, and its sizes.
    scratch: (usize, (usize, usize)),
    /// No rung is faster. Predicted for the first, with the most scratch.
    step: Seconds,
}

/// What came of a chain.
enum Climbed {
    /// A rung that fits, and what the first lacks.
    Found(Box<Best>, [Bytes; 2]),
    /// What fits is slower than the best so far; what the first rung lacks.
    TooSlow([Bytes; 2]),
    /// Nothing of it fits; what the first rung lacks.
    Hopeless([Bytes; 2]),
}

impl<'r> Fastest<'r> {
    fn new(request: &'r Request) -> Result<Self, PlanError> {
        request.check()?;
        let (workshop, rungs) = (Workshop::new(request), rungs(request));
        Ok(Self { workshop, best: None, kept_out: [false; 2], state_is_too_large: false, rungs })
    }

    /// Looks for the fastest that fits.
    pub(crate) fn search(request: &'r Request) -> Result<Self, PlanError> {
        let mut search = Self::new(request)?;
        if search.weights_are_too_large() {
            (search.kept_out[0], search.state_is_too_large) = (true, true);
            return Ok(search);
        }
        let chains = search.chains()?;
        let mut waiting = chains.iter().peekable();
        let mut hopeless = Vec::<&Chain>::new();
        let mut together = 1;
        loop {
            let mut now = Vec::with_capacity(together);
            while now.len() < together
                && let Some(chain) = waiting.next_if(|chain| !search.is_too_slow(chain.step))
            {
                if !hopeless.iter().any(|smaller| takes_more(request, chain, smaller)) {
                    now.push(chain);
                }
            }
            if now.is_empty() {
                return Ok(search);
            }
            let climbed = now.par_iter().map(|chain| search.climb(chain)).collect::<Result<Vec<_>, _>>()?;
            for (chain, climbed) in now.into_iter().zip(climbed) {
                let lacks = match climbed {
                    Climbed::Found(found, lacks) => {
                        search.offer(*found);
                        lacks
                    }
                    Climbed::TooSlow(lacks) => lacks,
                    Climbed::Hopeless(lacks) => {
                        hopeless.push(chain);
                        lacks
                    }
                };
                search.keep_out(lacks);
            }
            together = TOGETHER;
        }
    }

    /// All chains, by the step of their first rung; but those that can't fit.
    fn chains(&mut self) -> Result<Vec<Chain>, PlanError> {
        let request = self.workshop.request;
        let ends = ends(request);
        let parts = ends.par_iter().map(|&end| self.parts(end)).collect::<Result<Vec<_>, _>>()?;
        parts.iter().for_each(|parts| self.keep_out(parts.left_out));
        self.state_is_too_large = parts.iter().all(|parts| parts.state_is_too_large);
        let parts_of = |micro_batch: usize| {
            // Those that accumulate gradients take more than the smallest of them.
            let end = usize::from(parts.len() > 1 && micro_batch == request.global_batch);
            parts[end].offloads.clone()
        };
        let mut chains = Vec::new();
        for (micro_batch, offload, step) in self.first_steps(&parts_of)? {
            let scratches = scratches(request, micro_batch).into_iter().enumerate();
            chains.extend(scratches.map(|scratch| Chain { micro_batch, offload, scratch, step }));
        }
        chains.sort_by(|a, b| a.step.0.total_cmp(&b.step.0));
        Ok(chains)
    }

    /// Micro-batch, part of the optimizer that is moved, and the step without recomputation and with all scratch.
    fn first_steps(
        &self,
        offloads: &(dyn Fn(usize) -> Vec<f64> + Sync),
    ) -> Result<Vec<(usize, f64, Seconds)>, PlanError> {
        let request = self.workshop.request;
        let of_micro_batch = |&micro_batch: &usize| {
            let offloads = offloads(micro_batch);
            if offloads.is_empty() {
                return Ok(Vec::new());
            }
            let scratch = scratches(request, micro_batch)[0];
            let trunk = self.workshop.trunk(settings(request, micro_batch, 0.0, scratch, self.rungs[0]))?;
            let step = |&offload: &f64| (micro_batch, offload, self.workshop.moved(trunk.copy(), offload).step);
            Ok(offloads.par_iter().map(step).collect::<Vec<_>>())
        };
        let steps = micro_batches(request).par_iter().map(of_micro_batch).collect::<Result<Vec<_>, PlanError>>()?;
        Ok(steps.into_iter().flatten().collect())
    }

    /// The parts of the optimizer with which a micro-batch may fit.
    fn parts(&self, micro_batch: usize) -> Result<Parts, PlanError> {
        let request = self.workshop.request;
        let trunk = self.least_trunk(micro_batch)?;
        let mut parts = Parts { offloads: Vec::new(), left_out: FITS, state_is_too_large: true };
        let mut open = offloads(request);
        while !open.is_empty() {
            let offload = open.remove(open.len() / 2);
            let candidate = self.workshop.moved(trunk.copy(), offload);
            let state_lacks = self.workshop.lacks_for_state(&candidate);
            if state_lacks != FITS {
                // With less of it on the host more is on the device, and the other way round.
                open.retain(|&other| {
                    (state_lacks[0] == Bytes::ZERO || other > offload)
                        && (state_lacks[1] == Bytes::ZERO || other < offload)
                });
                parts.leave_out(state_lacks);
                continue;
            }
            parts.state_is_too_large = false;
            let lacks = self.workshop.lacks_at_least(&candidate);
            let mut may_fit = lacks == FITS;
            for rung in self.milestones().skip(1).chain([0]) {
                may_fit = may_fit || {
                    let candidate = self.workshop.moved(self.trunk_of(micro_batch, rung)?, offload);
                    self.workshop.lacks_at_least(&candidate) == FITS
                };
            }
            if may_fit { parts.offloads.push(offload) } else { parts.leave_out(lacks) }
        }
        parts.offloads.sort_by(f64::total_cmp);
        Ok(parts)
    }

    /// What the candidates share that mostly take the least with this micro-batch.
    fn least_trunk(&self, micro_batch: usize) -> Result<Trunk, PlanError> {
        self.trunk_of(micro_batch, self.rungs.len() - 1)
    }

    /// What the candidates of a rung share with the least scratch.
    fn trunk_of(&self, micro_batch: usize, rung: usize) -> Result<Trunk, PlanError> {
        let request = self.workshop.request;
        self.workshop.trunk(settings(request, micro_batch, 0.0, least_scratch(request, micro_batch), self.rungs[rung]))
    }

    /// The rungs above the first of which one takes the least, the last one first. Mostly that is the last; but where a
    /// block's results are small beside what making them again takes, an earlier one. All of few rungs, of many those
    /// that treat all blocks alike.
    fn milestones(&self) -> impl Iterator<Item = usize> + use<'_, 'r> {
        let few = self.rungs.len() <= FEW_RUNGS;
        (1..self.rungs.len()).rev().filter(move |&rung| few || self.rungs[rung].blocks == 0)
    }

    fn weights_are_too_large(&self) -> bool {
        let request = self.workshop.request;
        weights(request) > request.budget.device()
    }

    /// The first rung of a chain that fits, if it is faster than the best so far.
    fn climb(&self, chain: &Chain) -> Result<Climbed, PlanError> {
        let first = self.rung(chain, 0)?;
        if self.is_too_slow(first.step) {
            return Ok(Climbed::TooSlow(FITS));
        }
        let lacks = match self.workshop.plan_if_fits(&first) {
            Ok(plan) => return Ok(Climbed::Found(Box::new(Best { candidate: first, plan, rung: 0 }), FITS)),
            Err(lacks) => lacks,
        };
        drop(first);
        if (2..=FEW_RUNGS).contains(&self.rungs.len()) {
            return self.packed(chain, 1, self.rung(chain, 1)?, lacks);
        }
        let mut too_few = 0;
        let mut enough = None;
        // Chains are much alike, so the best one's rung tells the most.
        let best = self.best.as_ref().map(|best| best.rung).filter(|&rung| rung > 0);
        for guess in best.into_iter().chain(self.milestones()) {
            let rung = self.rung(chain, guess)?;
            if self.workshop.lacks_at_least(&rung) == FITS {
                enough = Some((guess, rung));
                break;
            } else if self.is_too_slow(rung.step) && Some(guess) == best {
                return Ok(Climbed::TooSlow(lacks));
            } else if Some(guess) == best {
                too_few = guess;
            }
        }
        let Some((mut rung, mut candidate)) = enough else { return Ok(Climbed::Hopeless(lacks)) };
        too_few = if too_few < rung { too_few } else { 0 };
        while rung - too_few > 1 {
            let middle = too_few + (rung - too_few) / 2;
            let between = self.rung(chain, middle)?;
            if self.workshop.lacks_at_least(&between) == FITS {
                (rung, candidate) = (middle, between);
            } else if self.is_too_slow(between.step) {
                // What does fit is further on, and slower still.
                return Ok(Climbed::TooSlow(lacks));
            } else {
                too_few = middle;
            }
        }
        self.packed(chain, rung, candidate, lacks)
    }

    /// The first rung from this one on that is really packed into the budget: mostly this one.
    fn packed(
        &self,
        chain: &Chain,
        mut rung: usize,
        mut candidate: Candidate,
        lacks: [Bytes; 2],
    ) -> Result<Climbed, PlanError> {
        loop {
            if self.is_too_slow(candidate.step) {
                return Ok(Climbed::TooSlow(lacks));
            }
            if let Ok(plan) = self.workshop.plan_if_fits(&candidate) {
                return Ok(Climbed::Found(Box::new(Best { candidate, plan, rung }), lacks));
            }
            rung += 1;
            if rung == self.rungs.len() {
                return Ok(Climbed::Hopeless(lacks));
            }
            candidate = self.rung(chain, rung)?;
        }
    }

    fn rung(&self, chain: &Chain, rung: usize) -> Result<Candidate, PlanError> {
        let Chain { micro_batch, offload, scratch, .. } = *chain;
        self.workshop.candidate(settings(self.workshop.request, micro_batch, offload, scratch.1, self.rungs[rung]))
    }

    fn is_too_slow(&self, step: Seconds) -> bool {
        self.best.as_ref().is_some_and(|best| best.candidate.step <= step)
    }

    fn offer(&mut self, found: Best) {
        if !self.is_too_slow(found.candidate.step) {
            self.best = Some(found);
        }
    }

    fn keep_out(&mut self, lacks: [Bytes; 2]) {
        for (kept_out, lacks) in self.kept_out.iter_mut().zip(lacks) {
            *kept_out |= lacks > Bytes::ZERO;
        }
    }
}

/// The parts of the optimizer that may be moved for something to fit.
struct Parts {
    /// Ascending.
    offloads: Vec<f64>,
    /// The most that those which can't lack.
    left_out: [Bytes; 2],
    /// Whether all of them lack it for weights, gradients and moments alone.
    state_is_too_large: bool,
}

impl Parts {
    fn leave_out(&mut self, lacks: [Bytes; 2]) {
        for (most, lacks) in self.left_out.iter_mut().zip(lacks) {
            *most = lacks.max(*most);
        }
    }
}

/// Whether a chain takes more at the least than another, which differs in nothing else.
fn takes_more(request: &Request, chain: &Chain, smaller: &Chain) -> bool {
    let accumulates = |chain: &Chain| chain.micro_batch < request.global_batch;
    chain.offload == smaller.offload
        && accumulates(chain)
        && accumulates(smaller)
        && chain.micro_batch >= smaller.micro_batch
        && chain.scratch.0 <= smaller.scratch.0
}
