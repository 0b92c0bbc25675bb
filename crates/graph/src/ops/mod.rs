//! The contract of an op. Each op has one file with everything about it: results, gradient, arithmetic, memory traffic,
//! scratch, where it runs, which state it updates, and the examples that enroll it in every oracle. The op's reference
//! kernel in `exec` defines what it computes.
//!
//! Not here: the list of ops (`list.rs`), checks of operands (`check.rs`), examples (`example.rs`), the interface of
//! gradient rules (`backward.rs`), and working memory in addition to a kernel's scratch (`working.rs`). To add an op,
//! write its file and its line in `list.rs`; the compiler then reports what each backend must implement.
//!
//! Shape letters: B batch, T time, C channels, H heads, D head size, V vocabulary, N rows (B·T), P positions, E experts,
//! K experts per token, R rows of experts (N·K).

mod add;
mod attention;
mod await_transfer;
mod backward;
mod by_rows;
mod cached_attention;
mod cast;
mod chain;
mod check;
mod clamped_swiglu;
mod column_scale;
mod contrastive_loss;
mod dispatch;
mod dropout;
mod embedding;
mod exact_gelu;
mod example;
mod expert_linear;
mod fp8_linear;
mod gated;
mod gelu;
mod grad_clip;
mod grad_norm;
mod head;
mod head_log_probs;
mod head_loss;
mod inner_parts;
mod keep_gradient;
mod layer_norm;
mod linear;
mod linear_add;
mod list;
mod low_rank_norm;
mod moving_average;
mod paired_head_loss;
mod parameter_update;
mod pool;
mod positions;
mod preference_loss;
mod quantized_expert_linear;
mod quantized_linear;
mod relu;
mod rms_norm;
mod rotary;
mod route;
mod router_loss;
mod scale;
mod soft_cap;
mod take_row;
mod tiled;
mod transfer;
mod uniform_noise;
mod working;

pub use crate::optimizers::StateFormat;
pub use backward::{Backward, Emit};
pub use chain::{Chain, ChainOp, Slot, Tile, Workspace};
pub use example::{Example, Fill};
pub use inner_parts::{ENOUGH_TENSOR_TILES, InnerParts, LARGE_TILE, TILE, tiles};
pub use list::*;
pub use tiled::{
    BLOCK_WORDS, TILE_MULTIPLE, in_tiles, panel_words, part_words, product_scratch, tiled_parts, tiled_scratch,
};

use crate::{GraphError, Pass, Target, TensorType, WeightCodes};
use check::{accumulating, expect_gradient, expect_rank, expect_type, operands};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// Numbers that change from one execution of a program to the next. Kernels receive them by value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Scalars {
    /// Seed of the run.
    pub seed: u64,
    /// The current optimizer step, counted from 1.
    pub step: u64,
    /// The update at the end of the step, counted from 1; skipped updates do not count.
    pub update: u64,
    /// Learning rate of this step.
    pub learning_rate: f32,
    /// `update` of the step before.
    pub update_before: u64,
    /// `learning_rate` of the step before.
    pub learning_rate_before: f32,
    /// Index of the micro-batch's first sample in the whole run; it is part of the key of dropout.
    pub first_sample: u64,
    /// Factor of the sum of token losses: one over the number of targets in the global batch.
    pub loss_scale: f32,
    /// Factor of losses that are not sums over targets: one over the number of micro-batches in the step.
    pub micro_batch_share: f32,
    /// Additional factor of the gradients, by which the optimizer divides: a power of two that keeps small ones
    /// representable in half precision.
    pub gradient_scale: f32,
    /// The reward that single answers are compared with; zero unless the loss estimates it.
    pub reference_point: f32,
    /// In sampling, the position of the first input token.
    pub position: u32,
    /// In sampling, the index of the input row to compute logits for.
    pub row: u32,
}

impl Default for Scalars {
    fn default() -> Self {
        Self {
            seed: 0,
            step: 1,
            update: 1,
            learning_rate: 0.0,
            update_before: 0,
            learning_rate_before: 0.0,
            first_sample: 0,
            loss_scale: 1.0,
            micro_batch_share: 1.0,
            gradient_scale: 1.0,
            reference_point: 0.0,
            position: 0,
            row: 0,
        }
    }
}

impl Scalars {
    /// The numbers that nodes of this pass receive.
    #[must_use]
    pub fn of(&self, pass: Pass) -> Self {
        match pass {
            Pass::HostUpdate => Self { update: self.update_before, learning_rate: self.learning_rate_before, ..*self },
            _ => *self,
        }
    }

    /// Those for the next step, from those of this one.
    #[must_use]
    pub fn followed_by(&self, next: &Self) -> Self {
        Self { update_before: self.update, learning_rate_before: self.learning_rate, ..*next }
    }
}

/// How a node uses one of its outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Writes every element without reading it.
    Write,
    /// Reads elements before it writes them.
    ReadWrite,
}

/// The types of a node's operands and results.
#[derive(Debug, Clone)]
pub struct Io<'a> {
    /// Operands in the op's order.
    pub inputs: Vec<&'a TensorType>,
    /// Results in the op's order.
    pub outputs: Vec<&'a TensorType>,
}

impl<'a> Io<'a> {
    /// Operands and results of these types, each in the op's order.
    pub fn new(
        inputs: impl IntoIterator<Item = &'a TensorType>,
        outputs: impl IntoIterator<Item = &'a TensorType>,
    ) -> Self {
        Self { inputs: inputs.into_iter().collect(), outputs: outputs.into_iter().collect() }
    }
}

/// What limits the speed of an op's kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Nature {
    /// Matrix products: limited by arithmetic.
    Products,
    /// Products of scores that are never stored, with a softmax between them.
    Attention,
    /// Passes over tensors: limited by memory bandwidth.
    Streaming,
}

/// Where a node runs if its tensors are in two memories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// On the device, wherever the tensors are.
    Device,
    /// In the memory of its first result: a node that updates state runs where the state is.
    Result,
    /// In the memory of this operand, of which it reads only a part: on the device if that is on the device.
    Operand(usize),
    /// In the memory of its operands, if all are in one memory.
    Operands,
    /// As `Operands`; if the operands are in two memories, those of each may be reduced there first, because the op
    /// applied to its own results for subsets of the operands gives the same bits.
    EachOperand,
}

/// The operands and results of an optimizer's node, as indices. The results from `state` on are moments in a fixed
/// order, followed by the further tensors of their format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpdateOperands {
    /// Operand: the gradient, `F32` or `Bf16`.
    pub gradient: usize,
    /// Operand: (1,), the factor of the gradient; if it is NaN, nothing is written.
    pub factor: usize,
    /// Result: the weight.
    pub weight: usize,
    /// Result: the difference of a rounded weight to single precision, if the format keeps it.
    pub remainder: Option<usize>,
    /// The first result that is state.
    pub state: usize,
}

/// Everything that an op declares about itself.
pub trait Operation {
    /// A short name, part of the names of its results.
    fn name(&self) -> &'static str;

    /// Types of the results. Errors: `ShapeMismatch` with the expected and the found type.
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError>;

    /// How the node uses output `index`.
    fn access(&self, _index: usize) -> Access {
        Access::Write
    }

    /// Pairs (input, output): the output may overwrite the input if no later node reads the input.
    fn reuse(&self) -> &'static [(usize, usize)] {
        &[]
    }

    /// Floating point operations; a multiply-add counts as two.
    fn flops(&self, io: &Io) -> u64;

    /// Bytes read from and written to memory by a kernel that passes over its operands once.
    fn bytes_moved(&self, io: &Io) -> Bytes {
        let read = io.inputs.iter().map(|t| t.bytes()).sum::<Bytes>();
        let written = io.outputs.iter().map(|t| t.bytes()).sum::<Bytes>();
        let updated = (0..io.outputs.len())
            .filter(|&i| self.access(i) == Access::ReadWrite)
            .map(|i| io.outputs[i].bytes())
            .sum::<Bytes>();
        read + written + updated
    }

    /// What limits the speed of its kernels.
    fn nature(&self) -> Nature {
        Nature::Streaming
    }

    /// Rows, terms and columns of its matrix products, if its nature is `Products`; else `None`.
    fn product(&self, _io: &Io) -> Option<[usize; 3]> {
        None
    }

    /// Blocks in which a card's tensor cores compute a product; 0 if its nature isn't `Products`.
    fn blocks(&self, io: &Io) -> usize {
        self.product(io).map_or(0, |[rows, terms, columns]| InnerParts::whole(terms).blocks(rows, columns))
    }

    /// Whether a library may compute its products, which needs a workspace.
    fn uses_library(&self) -> bool {
        self.nature() == Nature::Products
    }

    /// Whether the op needs memory traffic but hardly any arithmetic, so that recomputing its result is better than
    /// keeping it.
    fn is_cheap(&self) -> bool {
        false
    }

    /// Whether each row of its results depends only on the same row of operands with rows (B, T, ..), and on weights, and
    /// no result counts rows.
    fn is_by_rows(&self) -> bool {
        false
    }

    /// Where its nodes run.
    fn home(&self) -> Home {
        Home::Device
    }

    /// The operands and results of an optimizer's node; `None` for all other ops.
    fn update(&self) -> Option<UpdateOperands> {
        None
    }

    /// This optimizer with another format of the weight; `None` if the op is not an optimizer.
    fn keeping_weight(&self, _weight: WeightFormat) -> Option<Op> {
        None
    }

    /// This optimizer with another format of the state; `None` if the op is not an optimizer.
    fn keeping_state(&self, _state: StateFormat) -> Option<Op> {
        None
    }

    /// This op with a weight, operand `_index`, in codes, followed by their scales among the operands; `None` if there is no
    /// such op.
    fn with_codes(&self, _index: usize, _codes: WeightCodes) -> Option<Op> {
        None
    }

    /// This op with the chosen products in [`Fp8`]: those that read a weight among the operands that `_reads` chooses, or whose result
    /// `_writes` chooses. `None` if there is no such product.
    fn in_fp8(&self, _reads: &dyn Fn(usize) -> bool, _writes: &dyn Fn(usize) -> bool) -> Option<Op> {
        None
    }

    /// Working memory of the kernel.
    fn scratch(&self, _io: &Io, _target: &Target) -> Bytes {
        Bytes::ZERO
    }

    /// Emits the nodes of the gradient.
    fn backward(&self, _cx: &mut Backward) -> Result<(), GraphError> {
        Err(GraphError::NotDifferentiable { op: self.name() })
    }

    /// The cases that every oracle tests: finite differences, fast against reference, bounds, scratch.
    fn examples() -> Vec<Example>
    where
        Self: Sized;
}
