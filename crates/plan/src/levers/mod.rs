//! Levers: the choices by which a run is made to fit or made faster, one file each. A lever is a parameter or a
//! rewrite of the graph; no kernel, model or loop knows that it was pulled.

mod attention_rows;
mod average;
mod head_chunk;
mod micro_batch;
mod offload;
mod optimizer_state;
mod overlap;
mod precision;
mod recompute;
mod settle;
mod update_in_backward;

pub use attention_rows::{ATTENTION_ROW_CHOICES, attention_rows};
pub use average::{Average, EVALUATE_AVERAGE, average};
pub use head_chunk::{default_head_chunk, head_chunk, head_chunk_choices};
pub use micro_batch::divisors;
pub use offload::offload;
pub use optimizer_state::optimizer_state;
pub use precision::{Precision, precision};
pub use recompute::{Level, Recompute, recompute, recompute_ladder};
pub use settle::settle;
pub use update_in_backward::{join_update, update_in_backward, update_in_backward_excluded};

use graph::Graph;
use graph::ops::{ATTENTION_ROWS, StateFormat};
use serde::{Deserialize, Serialize};

/// Where every lever stands that is a rewrite of the graph. The others are parameters of `graph::TrainShape`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Levers {
    /// Rows of scores that attention holds at a time.
    pub attention_rows: usize,
    /// Precision of weights and activations.
    pub precision: Precision,
    /// How moments are kept.
    pub optimizer_state: StateFormat,
    /// The moving average of the weights, if one is wanted.
    pub average: Option<Average>,
    /// What the backward pass computes anew.
    pub recompute: Recompute,
    /// Whether parameters are updated in the backward pass.
    pub update_in_backward: bool,
    /// The part of the parameters, from 0 to 1, whose optimizer lives on the host.
    pub optimizer_offload: f64,
}

impl Default for Levers {
    /// None is pulled.
    fn default() -> Self {
        Self {
            attention_rows: ATTENTION_ROWS,
            precision: Precision::Fp32,
            optimizer_state: StateFormat::F32,
            average: None,
            recompute: Recompute::all(Level::None),
            update_in_backward: false,
            optimizer_offload: 0.0,
        }
    }
}

/// Why a lever can't be pulled together with the rest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize)]
#[error("{lever} is excluded: {reason}")]
pub struct Excluded {
    /// The lever.
    pub lever: &'static str,
    /// In words.
    pub reason: &'static str,
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
        optimizer_state(graph, self.optimizer_state);
        if let Some(wanted) = self.average {
            average(graph, wanted);
        }
    }

    /// The next ones, which say what is done when. Errors: what excludes what.
    pub fn pull_order(&self, graph: &mut Graph) -> Result<(), Excluded> {
        // Copies of nodes read weights, so they must be there before updates are put behind the last reader.
        recompute(graph, self.recompute);
        let excluded = update_in_backward_excluded(graph, self.precision).filter(|_| self.update_in_backward);
        join_update(graph);
        match excluded {
            Some(excluded) => return Err(excluded),
            None if self.update_in_backward => update_in_backward(graph),
            None => {}
        }
        Ok(())
    }

    /// The last ones, which say where tensors lie.
    pub fn pull_places(&self, graph: &mut Graph) {
        offload(graph, self.optimizer_offload);
        settle(graph);
    }
}
