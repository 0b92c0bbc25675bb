//! A configuration, and the graph and the plan that it makes.

use crate::base_graph::{Programs, built};
use crate::budget::Budget;
use crate::layout::Layout;
use crate::levers::{base_weights, quantizable};
use crate::plan::Plan;
use crate::request::{PlanError, Request};
use crate::settings::{HostShare, Kept, Settings};
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{
    Adapters, EmbedShape, Graph, MemoryId, SampleShape, Targets, WeightCodes, build_embedding, build_sampling,
};
use plimsoll_units::{Bytes, Seconds};

/// A configuration whose graph is built and whose arena is not packed yet.
pub(crate) struct Candidate {
    pub(crate) settings: Settings,
    pub(crate) graph: Graph,
}

/// One of the configurations that a request leaves open.
pub(crate) fn settings(
    request: &Request,
    micro_batch: usize,
    share: HostShare,
    (head_chunk, attention_rows): (usize, usize),
    kept: Kept,
) -> Settings {
    let levers = request.levers.levers(kept, share, attention_rows);
    Settings { micro_batch, head_chunk, levers }
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

/// The graph of a model that writes text. `codes`: how the weights of linear layers are stored. Errors: the model is
/// impossible, or none of its weights can be in these codes.
pub fn sampling_graph(
    model: &ModelConfig,
    adapters: Option<&Adapters>,
    shape: &SampleShape,
    codes: Option<WeightCodes>,
) -> Result<Graph, PlanError> {
    encoded(build_sampling(model, adapters, shape)?, codes)
}

/// A plan for writing text with a model: weights, caches and what `prefill` and `sample` need. Errors: those of
/// [`sampling_graph`].
pub fn plan_sampling(
    model: &ModelConfig,
    adapters: Option<&Adapters>,
    shape: &SampleShape,
    codes: Option<WeightCodes>,
    targets: &Targets,
    budget: Bytes,
) -> Result<(Graph, Plan), PlanError> {
    Ok(inference(sampling_graph(model, adapters, shape, codes)?, shape.capacity, targets, budget))
}

/// A plan for computing the vectors of texts with an encoder. `codes`: how the weights of linear layers are stored.
/// Errors: the model is impossible or not an encoder, or none of its weights can be in these codes.
pub fn plan_embedding(
    model: &ModelConfig,
    adapters: Option<&Adapters>,
    shape: &EmbedShape,
    codes: Option<WeightCodes>,
    targets: &Targets,
    budget: Bytes,
) -> Result<(Graph, Plan), PlanError> {
    let graph = encoded(build_embedding(model, adapters, shape)?, codes)?;
    Ok(inference(graph, shape.longest, targets, budget))
}

/// The graph with its weights in codes. Errors: none of them can be.
fn encoded(mut graph: Graph, codes: Option<WeightCodes>) -> Result<Graph, PlanError> {
    if let Some(format) = codes {
        if quantizable(&graph, format).is_empty() {
            return Err(PlanError::NothingQuantized { format, frozen: graph.parameters.len() });
        }
        base_weights(&mut graph, format);
    }
    Ok(graph)
}

/// The plan of a graph without training, whose programs read at most `seq_len` tokens at a time.
fn inference(graph: Graph, seq_len: usize, targets: &Targets, budget: Bytes) -> (Graph, Plan) {
    let plan = Plan {
        micro_batch: 1,
        accumulation: 1,
        global_batch: 1,
        seq_len,
        ..crate::lay_out(&graph, targets).within(&Budget::unlimited().with(MemoryId::DEVICE, budget))
    };
    (graph, plan)
}
