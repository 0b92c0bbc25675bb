//! Where candidates are built. What they have in common is built once: the graph and the levers on its types for each
//! micro-batch, what is recomputed and when updates run for all parts of the optimizer that may be moved.
//!
//! ```text
//!   base    per micro-batch          model, gradients, precision, moments      kept
//!   trunk   per rung                 recomputation, place of the update        shared by a group
//!   graph   per part that is moved   tensors on the host, transfers
//!           per scratch              two attributes of ops: set on the graph   nothing is built
//! ```

use crate::candidates::{Candidate, Settings, built, plan_candidate};
use crate::layout::{at_least, persistent};
use crate::levers::{attention_rows, head_chunk, update_in_backward_excluded};
use crate::plan::Plan;
use crate::request::{PlanError, Request};
use plimsoll_graph::Graph;
use plimsoll_units::{Bytes, Seconds};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Builds candidates of one request, on any thread. Only the order of work depends on threads.
pub(crate) struct Workshop<'r> {
    pub(crate) request: &'r Request,
    /// By micro-batch, with whether its parameters are updated in the backward pass.
    bases: Mutex<BTreeMap<usize, Arc<Base>>>,
    built: AtomicUsize,
}

/// A graph whose first levers are pulled.
struct Base {
    graph: Graph,
    update_in_backward: bool,
}

/// A graph whose levers are pulled but for those that say where tensors lie.
pub(crate) struct Trunk {
    graph: Graph,
    settings: Settings,
}

impl<'r> Workshop<'r> {
    pub(crate) fn new(request: &'r Request) -> Self {
        Self { request, bases: Mutex::default(), built: AtomicUsize::new(0) }
    }

    /// How many candidates were built.
    pub(crate) fn built(&self) -> usize {
        self.built.load(Ordering::Relaxed)
    }

    /// Where updating in the backward pass is left open, it is done if nothing excludes it, for it costs nothing.
    fn base(&self, settings: &Settings) -> Result<Arc<Base>, PlanError> {
        let known = |this: &Self| {
            let bases = this.bases.lock().unwrap_or_else(PoisonError::into_inner);
            bases.get(&settings.micro_batch).cloned()
        };
        if let Some(base) = known(self) {
            return Ok(base);
        }
        let mut graph = built(self.request, settings)?;
        let excluded = || update_in_backward_excluded(&graph, settings.levers.precision);
        let update_in_backward = self.request.levers.update_in_backward.unwrap_or_else(|| excluded().is_none());
        settings.levers.pull_types(&mut graph);
        let base = Arc::new(Base { graph, update_in_backward });
        let mut bases = self.bases.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(bases.entry(settings.micro_batch).or_insert(base).clone())
    }

    /// What all candidates share that differ from these settings in the part that is moved alone.
    pub(crate) fn trunk(&self, mut settings: Settings) -> Result<Trunk, PlanError> {
        let base = self.base(&settings)?;
        settings.levers.update_in_backward = base.update_in_backward;
        let mut graph = base.graph.clone();
        attention_rows(&mut graph, settings.levers.attention_rows);
        head_chunk(&mut graph, settings.head_chunk);
        settings.levers.pull_order(&mut graph)?;
        Ok(Trunk { graph, settings })
    }

    pub(crate) fn candidate(&self, settings: Settings) -> Result<Candidate, PlanError> {
        Ok(self.moved(self.trunk(settings)?, settings.levers.optimizer_offload))
    }

    /// With this part of the optimizer on the host.
    pub(crate) fn moved(&self, trunk: Trunk, optimizer_offload: f64) -> Candidate {
        let Trunk { mut graph, mut settings } = trunk;
        settings.levers.optimizer_offload = optimizer_offload;
        settings.levers.pull_places(&mut graph);
        self.built.fetch_add(1, Ordering::Relaxed);
        let step = self.step(&graph, &settings);
        Candidate { settings, graph, step }
    }

    fn step(&self, graph: &Graph, settings: &Settings) -> Seconds {
        let Request { machine, targets, global_batch, .. } = self.request;
        machine.step(graph, global_batch / settings.micro_batch, targets)
    }

    /// What budgets lack for what a candidate keeps over the whole run, whatever is computed.
    pub(crate) fn lacks_for_state(&self, candidate: &Candidate) -> [Bytes; 2] {
        self.request.budget.lacking(persistent(&candidate.graph))
    }

    /// What budgets lack at the least for a candidate, however well it is packed.
    pub(crate) fn lacks_at_least(&self, candidate: &Candidate) -> [Bytes; 2] {
        self.request.budget.lacking(at_least(&candidate.graph, &self.request.targets))
    }

    /// A candidate's plan if it fits, else what budgets lack. What does not is mostly known before packing, from what
    /// lives at once.
    pub(crate) fn plan_if_fits(&self, candidate: &Candidate) -> Result<Plan, [Bytes; 2]> {
        let fits = [Bytes::ZERO; 2];
        let bound = self.lacks_at_least(candidate);
        if bound != fits {
            return Err(bound);
        }
        let plan = plan_candidate(self.request, candidate);
        let lacking = self.request.budget.lacking(plan.arenas());
        if lacking == fits { Ok(plan) } else { Err(lacking) }
    }
}

impl Trunk {
    /// For another part to be moved.
    pub(crate) fn copy(&self) -> Self {
        Self { graph: self.graph.clone(), settings: self.settings }
    }
}
