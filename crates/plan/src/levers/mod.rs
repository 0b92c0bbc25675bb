//! Levers: the choices by which a run is made to fit or made faster, one file each. A lever is a parameter or a
//! rewrite of the graph; no kernel, model or loop knows that it was pulled.
//!
//! To add one: its file, with the rewrite and its [`Lever`]; its field in [`Levers`] and [`LeverRequest`] (`settings.rs`);
//! here its line in [`LEVERS`]; and its flag in `cli/levers.rs`. What the search leaves open is an axis of `search/space.rs` too.
//!
//! Levers are applied in one order (`Levers::pull`), and know no op by name if the op can say what they need
//! (`Operation::update`, `keeping_weight`, `keeping_state`, `with_codes`, `in_fp8`, `home`). Bytes and times are read off the rewritten
//! graph.

mod activation_offload;
mod attention_rows;
mod average;
mod base_weights;
mod copies;
mod fp8;
mod gradient_precision;
mod head_chunk;
mod host_update;
mod micro_batch;
mod offload;
mod optimizer_state;
mod overlap;
mod places;
mod precision;
mod recompute;
mod room;
mod sequence_tile;
mod settle;
mod update_in_backward;
mod weight_offload;

pub use activation_offload::activation_offload;
pub(crate) use activation_offload::{blocks_of, in_order, is_worth_sending};
pub use attention_rows::{ATTENTION_ROW_CHOICES, attention_rows};
pub use average::average;
pub use base_weights::base_weights;
pub(crate) use base_weights::quantizable;
pub use fp8::fp8;
pub use head_chunk::{default_head_chunk, head_chunk, head_chunk_choices};
pub(crate) use host_update::may_update_later;
pub use micro_batch::divisors;
pub(crate) use offload::moved;
pub use offload::offload;
pub use optimizer_state::optimizer_state;
pub use places::NodeSet;
pub(crate) use places::{MOST_KINDS, Place as NodePlace, Places};
pub use precision::precision;
pub(crate) use recompute::{Uses, remade};
pub use recompute::{recompute, recompute_ladder};
pub(crate) use sequence_tile::in_tiles;
pub use settle::settle;
pub use update_in_backward::{join_update, update_in_backward, update_in_backward_excluded};
pub use weight_offload::weight_offload;
pub(crate) use weight_offload::{resting, travels};

use crate::plan::Plan;
use crate::request::{PlanError, Request};
use crate::settings::{Excluded, LeverRequest, Levers, Precision, Settings};
use plimsoll_graph::{Graph, Op};
use plimsoll_units::Seconds;
use serde::Serialize;

/// Sizes that rows of logits and of scores at a time are chosen from, together.
pub const SCRATCHES: usize = 5;

/// A node's op with other rows of logits and of scores at a time; `None` if it has neither.
pub(crate) fn with_scratch(op: &Op, (chunk, rows): (usize, usize)) -> Option<Op> {
    let mut op = op.clone();
    if let Some(of_op) = head_chunk::chunk_of(&mut op) {
        *of_op = chunk;
    } else {
        *attention_rows::rows_of(&mut op)? = rows;
    }
    Some(op)
}

/// What a lever says about itself.
pub(crate) trait Lever: Sync {
    /// Its name, in lower case with hyphens.
    fn name(&self) -> &'static str;

    /// Its setting, in words.
    fn describe(&self, now: &Settings, request: &Request) -> String;

    /// The same configuration with this lever off.
    fn off(&self, now: &Settings, request: &Request) -> Settings;

    /// Why it is off, if something excludes it.
    fn excluded(&self, _now: &Settings, _request: &Request) -> Result<Option<Excluded>, PlanError> {
        Ok(None)
    }

    /// A remark, if it is on in this plan and adds this time to a step.
    fn remark(&self, _request: &Request, _plan: &Plan, _added: Seconds) -> Option<String> {
        None
    }

    /// Requests with this lever pulled further than is asked for, if that takes less memory and keeps the result; ever
    /// further.
    fn further(&self, _request: &Request) -> Vec<Alternative> {
        Vec::new()
    }

    /// Requests that take less memory because this lever rounds weights or moments otherwise, each a choice of its own.
    fn coarser(&self, _request: &Request) -> Vec<Alternative> {
        Vec::new()
    }

    /// Leaves the lever to the search, if that keeps the result. Returns whether it was fixed.
    fn leave_open(&self, _levers: &mut LeverRequest) -> bool {
        false
    }
}

/// All levers, in the order in which they are shown.
pub(crate) const LEVERS: [&dyn Lever; 13] = [
    &recompute::RecomputeLever,
    &sequence_tile::SequenceTileLever,
    &activation_offload::ActivationOffloadLever,
    &offload::OffloadLever,
    &weight_offload::WeightOffloadLever,
    &precision::PrecisionLever,
    &base_weights::BaseWeightsLever,
    &optimizer_state::OptimizerStateLever,
    &gradient_precision::GradientPrecisionLever,
    &update_in_backward::UpdateInBackwardLever,
    &head_chunk::HeadChunkLever,
    &attention_rows::AttentionRowsLever,
    &average::AverageLever,
];

/// A setting and the value that it is changed to, both as settings files write them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// What is changed, in lower case with hyphens: a lever, or `micro-batch`, `seq-len`, `host-ram`, `method`, `optimizer`,
    /// `model`.
    pub setting: &'static str,
    /// What it is changed to.
    pub value: String,
}

/// A request with changes.
#[derive(Clone)]
pub(crate) struct Alternative {
    pub(crate) changes: Vec<Change>,
    pub(crate) request: Request,
}

impl Alternative {
    /// With one thing changed.
    pub(crate) fn new(setting: &'static str, value: impl ToString, request: Request) -> Self {
        Self { changes: vec![Change { setting, value: value.to_string() }], request }
    }

    /// One of `next`, which was made of this one's request, with the changes of both.
    pub(crate) fn and(&self, next: Self) -> Self {
        Self { changes: [&self.changes[..], &next.changes].concat(), ..next }
    }

    /// With one lever changed.
    fn of_lever(
        lever: &dyn Lever,
        value: impl ToString,
        request: &Request,
        change: impl Fn(&mut LeverRequest),
    ) -> Self {
        let mut changed = request.clone();
        change(&mut changed.levers);
        Self::new(lever.name(), value, changed)
    }
}

impl Levers {
    /// Rewrites a graph that was just built. Errors: what excludes what.
    pub fn pull(&self, graph: &mut Graph) -> Result<(), Excluded> {
        self.pull_types(graph);
        self.pull_order(graph)?;
        self.pull_places(graph);
        Ok(())
    }

    /// The first levers, which say what tensors hold. Search leaves them where they are.
    pub fn pull_types(&self, graph: &mut Graph) {
        attention_rows(graph, self.attention_rows);
        precision(graph, self.precision);
        if let Some(format) = self.base_weights {
            base_weights(graph, format);
        }
        if self.precision == Precision::Fp8 {
            fp8(graph);
        }
        optimizer_state(graph, self.optimizer_state);
        if let Some(wanted) = self.average {
            average(graph, wanted);
        }
    }

    /// The next ones, which say what is done when. Errors: what excludes what.
    pub fn pull_order(&self, graph: &mut Graph) -> Result<(), Excluded> {
        // Copies of nodes read weights, so they must be there before updates are put after the last reader.
        recompute(graph, self.recompute);
        self.pull_order_of_recomputed(graph)
    }

    /// Those of them that come after what is recomputed. Errors: what excludes what.
    pub(crate) fn pull_order_of_recomputed(&self, graph: &mut Graph) -> Result<(), Excluded> {
        activation_offload(graph, self.activation_offload);
        let excluded = update_in_backward_excluded(graph, self.precision).filter(|_| self.update_in_backward);
        join_update(graph);
        match excluded {
            Some(excluded) => return Err(excluded),
            None if self.update_in_backward => update_in_backward(graph),
            None => {}
        }
        Ok(())
    }

    /// The last ones, which say where tensors rest.
    pub fn pull_places(&self, graph: &mut Graph) {
        self.pull_places_of(graph, true);
    }

    /// The same for the programs of all steps but the first, and for that one too if `has_first`.
    pub(crate) fn pull_places_of(&self, graph: &mut Graph, has_first: bool) {
        weight_offload(graph, self.weight_offload);
        offload(graph, self.optimizer_offload);
        if !(self.update_in_backward || self.host_update_at_end) {
            host_update::host_update(graph, has_first);
        }
        settle(graph);
    }
}
