//! The graph of a configuration before any lever is pulled.

use crate::levers::quantizable;
use crate::request::{PlanError, Request};
use crate::settings::Settings;
use plimsoll_graph::{Graph, TrainShape, build_training};

/// The programs of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Programs {
    /// Those that a step of the longest sequences runs: its time depends on them, and mostly the peak too.
    OfStep,
    /// Shorter lengths, evaluation and sampling too.
    All,
}

/// The graph before any lever is pulled. Errors: the model or the shape is impossible; no weight can be in the codes
/// that are asked for.
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
        sequence_tile: settings.levers.sequence_tile,
        adapters: request.adapters.clone(),
        gradients: settings.levers.gradients,
    };
    let graph = build_training(&request.model, &request.optimizer, &shape)?;
    match settings.levers.base_weights {
        Some(format) if quantizable(&graph, format).is_empty() => {
            let frozen = graph.parameters.iter().filter(|parameter| parameter.training.is_none()).count();
            Err(PlanError::NothingQuantized { format, frozen })
        }
        _ => Ok(graph),
    }
}
