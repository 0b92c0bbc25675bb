//! Builds the graphs of candidates. The graph of a micro-batch is built once; each candidate is a copy of it with its
//! levers pulled.

use super::space::scratches;
use crate::base_graph::{Programs, built};
use crate::candidate::{Candidate, settings};
use crate::levers::{attention_rows, head_chunk, update_in_backward_excluded};
use crate::request::{PlanError, Request};
use crate::settings::{HostShare, Kept, Settings};
use plimsoll_graph::Graph;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Builds candidates of one request, on any thread.
pub(crate) struct Builder<'r> {
    pub(crate) request: &'r Request,
    bases: Mutex<BTreeMap<(usize, Programs), Arc<Base>>>,
}

/// The graph of a micro-batch after [`Levers::pull_types`](crate::levers::Levers::pull_types).
struct Base {
    graph: Graph,
    update_in_backward: bool,
}

impl<'r> Builder<'r> {
    pub(crate) fn new(request: &'r Request) -> Self {
        Self { request, bases: Mutex::default() }
    }

    /// The settings of a micro-batch that neither recompute nor offload.
    pub(crate) fn plain(&self, micro_batch: usize) -> Settings {
        settings(self.request, micro_batch, HostShare::NONE, scratches(self.request, micro_batch)[0], Kept::ALL)
    }

    /// The graph of a candidate. Errors: levers that exclude each other, a model that can't be built.
    pub(crate) fn candidate(&self, mut settings: Settings, programs: Programs) -> Result<Candidate, PlanError> {
        let base = self.base(settings.micro_batch, programs)?;
        settings.levers.update_in_backward = base.update_in_backward;
        let mut graph = base.graph.clone();
        attention_rows(&mut graph, settings.levers.attention_rows);
        head_chunk(&mut graph, settings.head_chunk);
        settings.levers.pull_order(&mut graph)?;
        settings.levers.pull_places_of(&mut graph, programs == Programs::All);
        Ok(Candidate { settings, graph })
    }

    /// Updates run in the backward pass, which costs nothing, unless the request says otherwise or something excludes it.
    fn base(&self, micro_batch: usize, programs: Programs) -> Result<Arc<Base>, PlanError> {
        let bases = || self.bases.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(base) = bases().get(&(micro_batch, programs)) {
            return Ok(base.clone());
        }
        let settings = self.plain(micro_batch);
        let mut graph = built(self.request, &settings, programs)?;
        let excluded = || update_in_backward_excluded(&graph, settings.levers.precision);
        let update_in_backward = self.request.levers.update_in_backward.unwrap_or_else(|| excluded().is_none());
        settings.levers.pull_types(&mut graph);
        let base = Arc::new(Base { graph, update_in_backward });
        Ok(bases().entry((micro_batch, programs)).or_insert(base).clone())
    }
}
