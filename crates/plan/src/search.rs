//! Choosing a configuration: the largest micro-batch whose plan fits the budget. Each candidate's real graph is built
//! and its real arena packed; no formula decides what fits.

use crate::levers::{default_head_chunk, divisors as all_divisors, recompute};
use crate::plan::Plan;
use crate::request::{PlanError, Request};
use graph::models::ModelConfig;
use graph::{Graph, GraphError, Target, TrainShape, build_sampling, build_training};
use units::Bytes;

pub use crate::levers::divisors;

/// A plan that fits.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The graph that it places.
    pub graph: Graph,
    /// The plan.
    pub plan: Plan,
    /// The next larger micro-batch and the bytes that it would need, unless this one is the whole global batch.
    pub next_larger: Option<(usize, Bytes)>,
    /// How many plans were made.
    pub candidates: usize,
}

/// A change that makes a run fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nearest {
    /// The flags that ask for it.
    pub flags: String,
    /// What its plan takes.
    pub peak: Bytes,
}

/// The run does not fit: a value, not a failure.
#[derive(Debug, Clone, PartialEq)]
pub struct Misfit {
    /// The plan that was too large, for the smallest micro-batch that was allowed.
    pub plan: Plan,
    /// What the budget lacks.
    pub short: Bytes,
    /// Changes that make it fit, the smallest first.
    pub nearest: Vec<Nearest>,
    /// How many plans were made.
    pub candidates: usize,
}

/// Finds a plan under the request's budget. The outer error is for requests that make no sense; a run that does not
/// fit is `Ok(Err(misfit))`.
pub fn search(request: &Request) -> Result<Result<Found, Box<Misfit>>, PlanError> {
    request.check()?;
    let budget = request.budget.0;
    let choices = match request.micro_batch {
        Some(micro_batch) => vec![micro_batch],
        None => all_divisors(request.global_batch),
    };
    let mut candidates = 0;
    let mut plan_of = |micro_batch: usize| {
        candidates += 1;
        plan_training(request, micro_batch)
    };
    // The whole batch first, for it mostly fits; then by halving, as the peak grows with the micro-batch.
    let whole = choices.len() - 1;
    let (mut low, mut high) = (0, whole);
    let mut best = None;
    let mut too_large = None;
    while low <= high {
        let middle = if best.is_none() && too_large.is_none() { high } else { low + (high - low) / 2 };
        let candidate = plan_of(choices[middle])?;
        if candidate.1.peak_bytes <= budget {
            best = Some(candidate);
            low = middle + 1;
        } else {
            too_large = Some((middle, candidate.1));
            if middle == 0 {
                break;
            }
            high = middle - 1;
        }
    }
    match (best, too_large) {
        (Some((graph, mut plan)), too_large) => {
            plan.budget_bytes = budget;
            let next_larger = match too_large {
                Some((index, larger)) => Some((choices[index], Bytes(larger.peak_bytes))),
                None => next_divisor(request, plan.micro_batch)
                    .map(|next| plan_of(next).map(|(_, larger)| (next, larger.peak())))
                    .transpose()?,
            };
            Ok(Ok(Found { graph, plan, next_larger, candidates }))
        }
        (None, Some((_, mut plan))) => {
            plan.budget_bytes = budget;
            let short = Bytes(plan.peak_bytes - budget);
            let (nearest, tried) = nearest_that_fit(request)?;
            Ok(Err(Box::new(Misfit { plan, short, nearest, candidates: candidates + tried })))
        }
        (None, None) => unreachable!("a global batch has at least one divisor"),
    }
}

fn next_divisor(request: &Request, micro_batch: usize) -> Option<usize> {
    all_divisors(request.global_batch).into_iter().find(|&d| d > micro_batch)
}

/// The graph and the plan of a training run with this micro-batch, under no budget.
fn plan_training(request: &Request, micro_batch: usize) -> Result<(Graph, Plan), PlanError> {
    let shape = TrainShape {
        micro_batch,
        seq_len: request.seq_len,
        accumulates: micro_batch < request.global_batch,
        head_chunk: default_head_chunk(micro_batch * request.seq_len, request.model.vocab_size()),
        evaluates: request.evaluates,
        sample_prefill: request.sample_prefill,
    };
    let mut graph = build_training(&request.model, &request.optimizer, &shape)?;
    recompute(&mut graph, request.recompute);
    let plan = Plan {
        micro_batch,
        accumulation: request.global_batch / micro_batch,
        global_batch: request.global_batch,
        seq_len: request.seq_len,
        ..crate::lay_out(&graph, &request.target)
    };
    Ok((graph, plan))
}

/// A plan for writing text with a model: weights, caches and what `prefill` and `sample` need.
pub fn plan_sampling(
    model: &ModelConfig,
    prefill: usize,
    target: &Target,
    budget: Bytes,
) -> Result<(Graph, Plan), GraphError> {
    let graph = build_sampling(model, prefill)?;
    let plan = Plan {
        micro_batch: 1,
        accumulation: 1,
        global_batch: 1,
        seq_len: model.max_positions(),
        budget_bytes: budget.0,
        ..crate::lay_out(&graph, target)
    };
    Ok((graph, plan))
}

/// Up to three changes that fit: a smaller micro-batch, then shorter sequences, then smaller models.
fn nearest_that_fit(request: &Request) -> Result<(Vec<Nearest>, usize), PlanError> {
    let mut nearest = Vec::new();
    let mut tried = 0;
    let mut consider = |request: &Request, micro_batch: usize, flags: String, nearest: &mut Vec<Nearest>| {
        tried += 1;
        let (_, plan) = plan_training(request, micro_batch)?;
        let fits = plan.peak_bytes <= request.budget.0;
        if fits {
            nearest.push(Nearest { flags, peak: plan.peak() });
        }
        Ok::<_, PlanError>(fits)
    };
    if let Some(asked) = request.micro_batch {
        for micro_batch in all_divisors(request.global_batch).into_iter().rev().filter(|&d| d < asked) {
            if consider(request, micro_batch, format!("--micro-batch {micro_batch}"), &mut nearest)? {
                break;
            }
        }
    }
    let mut seq_len = request.seq_len / 2;
    while seq_len >= 16 {
        let shorter = Request { seq_len, ..request.clone() };
        if consider(&shorter, 1, format!("--seq-len {seq_len} --micro-batch 1"), &mut nearest)? {
            break;
        }
        seq_len /= 2;
    }
    for name in ModelConfig::preset_names().into_iter().rev() {
        let mut model = ModelConfig::preset(name)?;
        model.set_vocab_size(request.model.vocab_size());
        let smaller = model.parameter_bound() < request.model.parameter_bound();
        model.set_max_positions(model.max_positions().max(request.seq_len));
        let candidate = Request { model, ..request.clone() };
        if smaller && consider(&candidate, 1, format!("--model {name} --micro-batch 1"), &mut nearest)? {
            break;
        }
    }
    nearest.truncate(3);
    Ok((nearest, tried))
}
