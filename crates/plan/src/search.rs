//! Choosing a configuration: the one with the shortest predicted step whose plan fits. Each candidate's real graph is
//! built and its real arena packed; no formula decides what fits.
//!
//! ```text
//!   micro-batch × recompute level × sizes of scratch      built, and their steps predicted
//!        │ from the shortest step on
//!        ▼
//!   arena packed ── fits ──► the plan
//!        │ none fits
//!        ▼
//!   the same with a larger part of the optimizer on the host
//! ```

use crate::levers::{
    ATTENTION_ROW_CHOICES, Level, Levers, Precision, Recompute, divisors as all_divisors, head_chunk_choices,
    update_in_backward_excluded,
};
use crate::plan::Plan;
use crate::request::{PlanError, Request};
use graph::models::ModelConfig;
use graph::ops::StateFormat;
use graph::{Graph, GraphError, SampleShape, Target, TrainShape, build_sampling, build_training};
use units::{Bytes, Seconds};

pub use crate::levers::divisors;

/// A configuration: the micro-batch, and where all levers stand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Samples that pass through the model at a time.
    pub micro_batch: usize,
    /// Rows of logits at a time.
    pub head_chunk: usize,
    /// The levers that are rewrites.
    pub levers: Levers,
}

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
    /// The next larger micro-batch and the bytes that it would need, unless this one is the whole global batch.
    pub next_larger: Option<(usize, Bytes)>,
    /// How many plans were made.
    pub candidates: usize,
}

impl Found {
    /// Predicted tokens trained on in a second.
    pub fn tokens_per_s(&self) -> f64 {
        self.plan.tokens_per_step() as f64 / self.step.0
    }
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
    /// The smallest plan that was allowed, which is too large.
    pub plan: Plan,
    /// What the budget lacks; zero if only the host's does.
    pub short: Bytes,
    /// What the host's budget lacks.
    pub host_short: Bytes,
    /// Changes that make it fit, the smallest first.
    pub nearest: Vec<Nearest>,
    /// How many plans were made.
    pub candidates: usize,
}

/// A configuration whose graph is built and whose arena is not packed yet.
pub(crate) struct Candidate {
    pub(crate) settings: Settings,
    pub(crate) graph: Graph,
    pub(crate) step: Seconds,
}

/// Parts of the optimizer that may be moved to the host.
const OFFLOADS: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];

/// Micro-batches that are tried at most.
const MOST_MICRO_BATCHES: usize = 10;

/// Finds a plan under the request's budgets. The outer error is for requests that make no sense; a run that does not
/// fit is `Ok(Err(misfit))`.
pub fn search(request: &Request) -> Result<Result<Found, Box<Misfit>>, PlanError> {
    request.check()?;
    let mut tried = 0;
    let mut smallest: Option<Plan> = None;
    let offloads = match request.levers.optimizer_offload {
        Some(fraction) => vec![fraction],
        None => OFFLOADS.to_vec(),
    };
    for offload in offloads {
        let mut candidates = Vec::new();
        let mut too_large = false;
        for micro_batch in micro_batches(request) {
            // A whole batch at once is another matter, since it keeps no gradients from one micro-batch to the next.
            if too_large && micro_batch < request.global_batch {
                continue;
            }
            let mut settings = settings(request, micro_batch, offload);
            // The last of them takes the least. If even that does not fit, nor will a larger micro-batch.
            let least = candidate(request, settings.pop().expect("a request has at least one configuration"))?;
            tried += 1;
            let plan = plan_candidate(request, &least);
            if !fits(request, &plan) {
                keep_smaller(request, &mut smallest, plan);
                too_large = true;
                continue;
            }
            candidates.push(least);
            for settings in settings {
                candidates.push(candidate(request, settings)?);
            }
        }
        candidates.sort_by(|a, b| a.step.0.total_cmp(&b.step.0));
        for candidate in candidates {
            tried += 1;
            let plan = plan_candidate(request, &candidate);
            if fits(request, &plan) {
                return found(request, candidate, plan, tried).map(Ok);
            }
        }
    }
    let plan = smallest.expect("a request has at least one configuration");
    let short = Bytes(plan.peak_bytes.saturating_sub(request.budget.0));
    let host_short = Bytes(plan.host_bytes.saturating_sub(request.host_budget.0));
    let (nearest, more) = nearest_that_fit(request)?;
    Ok(Err(Box::new(Misfit { plan, short, host_short, nearest, candidates: tried + more })))
}

/// Whether anything that the request leaves open makes it fit. Tries only what takes the least.
pub(crate) fn can_fit(request: &Request) -> Result<bool, PlanError> {
    request.check()?;
    let micro_batches = micro_batches(request);
    let offload = request.levers.optimizer_offload.unwrap_or(1.0);
    let at_the_ends = [micro_batches.first(), micro_batches.last()].into_iter().flatten();
    for &micro_batch in at_the_ends {
        let least = settings(request, micro_batch, offload).pop().expect("a request has at least one configuration");
        let candidate = candidate(request, least)?;
        if fits(request, &plan_candidate(request, &candidate)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn fits(request: &Request, plan: &Plan) -> bool {
    plan.peak_bytes <= request.budget.0 && plan.host_bytes <= request.host_budget.0
}

fn found(request: &Request, candidate: Candidate, plan: Plan, mut tried: usize) -> Result<Found, PlanError> {
    let Candidate { mut settings, mut graph, mut step } = candidate;
    let mut plan = plan;
    // Not all blocks need to be at the deepest level: as few as it takes.
    let blocks = request.model.blocks();
    if request.levers.recompute.is_none() && settings.levers.recompute == Recompute::all(Level::Block) {
        let (mut enough, mut too_few) = (blocks, 0);
        while enough - too_few > 1 {
            let middle = too_few + (enough - too_few) / 2;
            let recompute = Recompute { blocks: middle, first: Level::Block, rest: Level::Cheap };
            let levers = Levers { recompute, ..settings.levers };
            let fewer = self::candidate(request, Settings { levers, ..settings })?;
            tried += 1;
            let fewer_plan = plan_candidate(request, &fewer);
            if fits(request, &fewer_plan) {
                (settings, graph, step, plan) = (fewer.settings, fewer.graph, fewer.step, fewer_plan);
                enough = middle;
            } else {
                too_few = middle;
            }
        }
    }
    let larger = all_divisors(request.global_batch).into_iter().find(|&d| d > settings.micro_batch);
    let next_larger = match larger {
        Some(micro_batch) => {
            tried += 1;
            let larger = Settings { micro_batch, ..settings };
            Some((micro_batch, plan_candidate(request, &self::candidate(request, larger)?).peak()))
        }
        None => None,
    };
    Ok(Found { graph, plan, settings, step, next_larger, candidates: tried })
}

/// The divisors of the global batch, thinned out where there are many.
fn micro_batches(request: &Request) -> Vec<usize> {
    if let Some(micro_batch) = request.micro_batch {
        return vec![micro_batch];
    }
    let all = all_divisors(request.global_batch);
    let stride = all.len().div_ceil(MOST_MICRO_BATCHES);
    // From the smallest on, and the largest too.
    let last = all.len() - 1;
    all.into_iter().enumerate().filter(|(i, _)| i % stride == 0 || *i == last).map(|(_, d)| d).collect()
}

/// Keeps the smaller of two plans that don't fit.
fn keep_smaller(request: &Request, smallest: &mut Option<Plan>, plan: Plan) {
    let over = |plan: &Plan| (plan.peak_bytes.saturating_sub(request.budget.0), plan.host_bytes);
    if smallest.as_ref().is_none_or(|s| over(&plan) < over(s)) {
        *smallest = Some(plan);
    }
}

/// What a request leaves open for a micro-batch: levels of recomputation, and sizes of scratch.
fn settings(request: &Request, micro_batch: usize, optimizer_offload: f64) -> Vec<Settings> {
    let asked = &request.levers;
    let levels = match asked.recompute {
        Some(recompute) => vec![recompute],
        None => [Level::None, Level::Cheap, Level::Attention, Level::Block].map(Recompute::all).to_vec(),
    };
    let chunks = match asked.head_chunk {
        Some(rows) => [rows; 3],
        None => {
            head_chunk_choices(micro_batch * request.target_len.unwrap_or(request.seq_len), request.model.vocab_size())
        }
    };
    let rows = asked.attention_rows.map_or(ATTENTION_ROW_CHOICES, |rows| [rows; 3]);
    let mut scratch = chunks.into_iter().zip(rows).collect::<Vec<_>>();
    scratch.dedup();
    let mut all = Vec::with_capacity(levels.len() * scratch.len());
    for recompute in levels {
        for &(head_chunk, attention_rows) in &scratch {
            let levers = Levers {
                attention_rows,
                precision: asked.precision,
                optimizer_state: asked.optimizer_state.unwrap_or(StateFormat::F32),
                average: asked.average,
                recompute,
                update_in_backward: asked.update_in_backward.unwrap_or(false),
                optimizer_offload,
            };
            all.push(Settings { micro_batch, head_chunk, levers });
        }
    }
    all
}

/// Builds a configuration's graph. Where updating in the backward pass is left open, it is done if nothing excludes
/// it, for it costs nothing.
fn candidate(request: &Request, mut settings: Settings) -> Result<Candidate, PlanError> {
    let graph = built(request, &settings)?;
    if request.levers.update_in_backward.is_none() {
        let excluded = update_in_backward_excluded(&graph, settings.levers.precision);
        settings.levers.update_in_backward = excluded.is_none();
    }
    pulled(request, settings, graph)
}

/// The graph before any lever is pulled.
pub(crate) fn built(request: &Request, settings: &Settings) -> Result<Graph, PlanError> {
    let shape = TrainShape {
        micro_batch: settings.micro_batch,
        seq_len: request.seq_len,
        target_len: request.target_len,
        buckets: request.buckets.clone(),
        packed: request.packed,
        accumulates: settings.micro_batch < request.global_batch,
        head_chunk: settings.head_chunk,
        objective: request.objective,
        evaluates: request.evaluates,
        sample_prefill: request.sample_prefill,
    };
    Ok(build_training(&request.model, &request.optimizer, &shape)?)
}

/// Pulls the levers as they stand.
pub(crate) fn pulled(request: &Request, settings: Settings, mut graph: Graph) -> Result<Candidate, PlanError> {
    settings.levers.pull(&mut graph)?;
    let accumulation = request.global_batch / settings.micro_batch;
    let step = request.machine.step(&graph, accumulation, &request.target);
    Ok(Candidate { settings, graph, step })
}

pub(crate) fn plan_candidate(request: &Request, candidate: &Candidate) -> Plan {
    let micro_batch = candidate.settings.micro_batch;
    Plan {
        budget_bytes: request.budget.0,
        host_budget_bytes: request.host_budget.0,
        micro_batch,
        accumulation: request.global_batch / micro_batch,
        global_batch: request.global_batch,
        seq_len: request.seq_len,
        target_len: request.target_len,
        ..crate::lay_out(&candidate.graph, &request.target)
    }
}

/// The graph and the plan of a configuration, whether it fits or not. Errors: levers that exclude each other.
pub fn plan_settings(request: &Request, settings: Settings) -> Result<(Graph, Plan), PlanError> {
    request.check()?;
    let candidate = pulled(request, settings, built(request, &settings)?)?;
    let plan = plan_candidate(request, &candidate);
    Ok((candidate.graph, plan))
}

/// A plan for writing text with a model: weights, caches and what `prefill` and `sample` need.
pub fn plan_sampling(
    model: &ModelConfig,
    shape: &SampleShape,
    target: &Target,
    budget: Bytes,
) -> Result<(Graph, Plan), GraphError> {
    let graph = build_sampling(model, shape)?;
    let plan = Plan {
        micro_batch: 1,
        accumulation: 1,
        global_batch: 1,
        seq_len: shape.capacity,
        budget_bytes: budget.0,
        ..crate::lay_out(&graph, target)
    };
    Ok((graph, plan))
}

/// Up to three changes that fit, the smallest first: deeper levers, a smaller micro-batch, shorter sequences, levers
/// that change the result, smaller models.
fn nearest_that_fit(request: &Request) -> Result<(Vec<Nearest>, usize), PlanError> {
    const WANTED: usize = 3;
    let mut nearest = Vec::new();
    let mut tried = 0;
    let smallest = *all_divisors(request.global_batch).first().expect("one divides everything");
    let mut consider = |request: &Request, flags: String, nearest: &mut Vec<Nearest>| {
        let asked = &request.levers;
        let recompute = asked.recompute.unwrap_or(Recompute::all(Level::Block));
        let micro_batch = request.micro_batch.unwrap_or(smallest);
        let offload = asked.optimizer_offload.unwrap_or(1.0);
        let open = Request { levers: crate::LeverRequest { recompute: Some(recompute), ..*asked }, ..request.clone() };
        for settings in settings(&open, micro_batch, offload).into_iter().rev().take(1) {
            tried += 1;
            let plan = plan_candidate(request, &candidate(request, settings)?);
            if fits(request, &plan) {
                nearest.push(Nearest { flags, peak: plan.peak() });
                return Ok(true);
            }
        }
        Ok::<_, PlanError>(false)
    };
    let with = |change: &dyn Fn(&mut crate::LeverRequest)| {
        let mut changed = request.clone();
        change(&mut changed.levers);
        changed
    };
    if request.micro_batch.is_some_and(|asked| asked > smallest) {
        let asked = request.micro_batch.expect("just seen");
        for micro_batch in all_divisors(request.global_batch).into_iter().rev().filter(|&d| d < asked) {
            let smaller = Request { micro_batch: Some(micro_batch), ..request.clone() };
            if consider(&smaller, format!("--micro-batch {micro_batch}"), &mut nearest)? {
                break;
            }
        }
    }
    if request.levers.recompute.is_some_and(|r| r != Recompute::all(Level::Block)) {
        let deeper = with(&|levers| levers.recompute = Some(Recompute::all(Level::Block)));
        consider(&deeper, "--recompute blocks".to_owned(), &mut nearest)?;
    }
    if request.levers.optimizer_offload.is_some_and(|fraction| fraction < 1.0) {
        let farther = with(&|levers| levers.optimizer_offload = Some(1.0));
        consider(&farther, "--optimizer-offload 1".to_owned(), &mut nearest)?;
    }
    let mut seq_len = request.seq_len / 2;
    while seq_len >= 16 && nearest.len() < WANTED {
        let shorter = Request { seq_len, ..request.clone() };
        if consider(&shorter, format!("--seq-len {seq_len}"), &mut nearest)? {
            break;
        }
        seq_len /= 2;
    }
    if request.levers.precision == Precision::Fp32 && nearest.len() < WANTED {
        let half = with(&|levers| levers.precision = Precision::Bf16);
        consider(&half, "--precision bf16".to_owned(), &mut nearest)?;
    }
    if request.levers.optimizer_state.is_none() && nearest.len() < WANTED {
        let coarse = with(&|levers| levers.optimizer_state = Some(StateFormat::Blockwise8));
        consider(&coarse, "--optimizer-state 8bit".to_owned(), &mut nearest)?;
    }
    for name in ModelConfig::preset_names().into_iter().rev() {
        if nearest.len() >= WANTED {
            break;
        }
        let mut model = ModelConfig::preset(name)?;
        model.set_vocab_size(request.model.vocab_size());
        let smaller = model.parameter_bound() < request.model.parameter_bound();
        model.set_max_positions(model.max_positions().max(request.seq_len));
        let candidate = Request { model, ..request.clone() };
        if smaller && consider(&candidate, format!("--model {name}"), &mut nearest)? {
            break;
        }
    }
    nearest.truncate(WANTED);
    Ok((nearest, tried))
}
