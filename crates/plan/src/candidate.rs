//! A configuration, and the graph and the plan that it makes.

use crate::budget::Budget;
use crate::layout::Layout;
use crate::levers::{Level, Levers, Recompute};
use crate::plan::Plan;
use crate::request::{PlanError, Request};
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{Graph, GraphError, MemoryId, SampleShape, Targets, TrainShape, build_sampling, build_training};
use plimsoll_units::{Bytes, Seconds};

/// A configuration: the micro-batch, and the settings of all levers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Samples that pass through the model at a time.
    pub micro_batch: usize,
    /// Rows of logits at a time.
    pub head_chunk: usize,
    /// The levers that are rewrites.
    pub levers: Levers,
}

/// How the forward pass's results are kept until the backward pass reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Kept {
    pub(crate) recompute: Recompute,
    /// The first blocks in the order of `in_order`, this many: what they do not recompute waits on the host.
    pub(crate) sent_blocks: usize,
}

impl Kept {
    /// On the device, all of it.
    pub(crate) const ALL: Self = Self { recompute: Recompute::all(Level::None), sent_blocks: 0 };
}

/// A configuration whose graph is built and whose arena is not packed yet.
pub(crate) struct Candidate {
    pub(crate) settings: Settings,
    pub(crate) graph: Graph,
}

/// One of the configurations that a request leaves open.
pub(crate) fn settings(
    request: &Request,
    micro_batch: usize,
    optimizer_offload: f64,
    (head_chunk, attention_rows): (usize, usize),
    kept: Kept,
) -> Settings {
    let levers = request.levers.levers(kept, optimizer_offload, attention_rows);
    Settings { micro_batch, head_chunk, levers }
}

/// The programs of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Programs {
    /// Those that a step of the longest sequences runs: its time depends on them, and mostly the peak too.
    OfStep,
    /// Shorter lengths, evaluation and sampling too.
    All,
}

/// The graph before any lever is pulled.
pub(crate) fn built(request: &Request, settings: &Settings, programs: Programs) -> Result<Graph, PlanError> {
    let has_all = programs == Programs::All;
    let shape = TrainShape {
        micro_batch: settings.micro_batch,
        seq_len: request.seq_len,
        target_len: request.target_len,
        buckets: if has_all { request.buckets.clone() } else { Vec::new() },
        packed: request.packed,
        objective: request.objective,
        accumulates: settings.micro_batch < request.global_batch,
        head_chunk: settings.head_chunk,
        evaluates: request.evaluates && has_all,
        sample_prefill: request.sample_prefill.filter(|_| has_all),
        frozen: request.frozen.clone(),
    };
    Ok(build_training(&request.model, &request.optimizer, &shape)?)
}

/// Pulls the levers.
pub(crate) fn pulled(settings: Settings, mut graph: Graph) -> Result<Candidate, PlanError> {
    settings.levers.pull(&mut graph)?;
    Ok(Candidate { settings, graph })
}

/// Predicted time of a step.
pub(crate) fn predicted_step(request: &Request, Candidate { settings, graph }: &Candidate) -> Seconds {
    request.machine.step(graph, request.global_batch / settings.micro_batch, &request.targets)
}

pub(crate) fn plan_candidate(request: &Request, candidate: &Candidate) -> Plan {
    plan_layout(request, candidate, &Layout::new(&candidate.graph, &request.targets))
}

/// The plan of a candidate with this layout.
pub(crate) fn plan_layout(request: &Request, candidate: &Candidate, layout: &Layout) -> Plan {
    let micro_batch = candidate.settings.micro_batch;
    Plan {
        micro_batch,
        accumulation: request.global_batch / micro_batch,
        global_batch: request.global_batch,
        seq_len: request.seq_len,
        target_len: request.target_len,
        ..layout.plan(&candidate.graph, &request.targets).within(&request.budget)
    }
}

/// The graph and the plan of a configuration, whether it fits or not. Errors: levers that exclude each other.
pub fn plan_settings(request: &Request, settings: Settings) -> Result<(Graph, Plan), PlanError> {
    request.check()?;
    let candidate = pulled(settings, built(request, &settings, Programs::All)?)?;
    let plan = plan_candidate(request, &candidate);
    Ok((candidate.graph, plan))
}

/// A plan for writing text with a model: weights, caches and what `prefill` and `sample` need.
pub fn plan_sampling(
    model: &ModelConfig,
    shape: &SampleShape,
    targets: &Targets,
    budget: Bytes,
) -> Result<(Graph, Plan), GraphError> {
    let graph = build_sampling(model, shape)?;
    let plan = Plan {
        micro_batch: 1,
        accumulation: 1,
        global_batch: 1,
        seq_len: shape.capacity,
        ..crate::lay_out(&graph, targets).within(&Budget::unlimited().with(MemoryId::DEVICE, budget))
    };
    Ok((graph, plan))
}
