//! The contract of an op: what it says about itself, and the types that it says it in. One file each holds all about an
//! op: results, gradient, arithmetic, memory traffic, scratch, where it runs, what it updates, and the examples that enrol
//! it in every oracle. What an op computes is defined by its reference kernel in `exec`.
//!
//! Not here: the list of ops (`list.rs`), what they check of operands (`check.rs`), examples (`example.rs`), and the
//! working memory in addition to a kernel's scratch (`working.rs`). To add an op: its file and its line in `list.rs`; the compiler
//! then asks for what backends implement for it.
//!
//! Shape letters: B batch, T time, C channels, H heads, D head size, V vocabulary, N rows (B·T), P positions.

mod add;
mod attention;
mod await_transfer;
mod cached_attention;
mod cast;
mod check;
mod dropout;
mod embedding;
mod example;
mod gated;
mod gelu;
mod grad_clip;
mod grad_norm;
mod head_loss;
mod inner_parts;
mod layer_norm;
mod linear;
mod list;
mod moving_average;
mod paired_head_loss;
mod parameter_update;
mod positions;
mod relu;
mod rms_norm;
mod rotary;
mod scale;
mod soft_cap;
mod take_row;
mod tiled;
mod transfer;
mod working;

pub use example::{Example, Fill};
pub use inner_parts::InnerParts;
pub use list::*;
pub use tiled::{
    BLOCK_WORDS, TILE_MULTIPLE, in_tiles, panel_words, part_words, product_scratch, tiled_parts, tiled_scratch,
};

use crate::{Backward, GraphError, Target, TensorType};
use check::{accumulating, expect_rank, expect_type, operands};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// Numbers that differ from one execution of a program to the next. They reach kernels by value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Scalars {
    /// Seed of the run.
    pub seed: u64,
    /// The optimizer step being made, counted from 1.
    pub step: u64,
    /// The update that the step ends with, counted from 1: steps whose update was skipped don't count.
    pub update: u64,
    /// Learning rate of this step.
    pub learning_rate: f32,
    /// Number of the micro-batch's first sample, counted over the whole run: dropout is keyed by it.
    pub first_sample: u64,
    /// What the sum of token losses is multiplied by: one over the number of targets in the global batch.
    pub loss_scale: f32,
    /// What gradients are multiplied by beyond that, until the optimizer divides by it: a power of two that keeps
    /// small ones representable in half precision.
    pub gradient_scale: f32,
    /// Sampling: the position of the first token that is fed.
    pub position: u32,
    /// Sampling: which of the fed rows the logits are wanted of.
    pub row: u32,
}

impl Default for Scalars {
    fn default() -> Self {
        Self {
            seed: 0,
            step: 1,
            update: 1,
            learning_rate: 0.0,
            first_sample: 0,
            loss_scale: 1.0,
            gradient_scale: 1.0,
            position: 0,
            row: 0,
        }
    }
}

/// How a node uses one of its outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Every element is written; what was there does not matter.
    Write,
    /// What was there is read, then written.
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
    /// Of operands and results of these types, each in the op's order.
    pub fn new(
        inputs: impl IntoIterator<Item = &'a TensorType>,
        outputs: impl IntoIterator<Item = &'a TensorType>,
    ) -> Self {
        Self { inputs: inputs.into_iter().collect(), outputs: outputs.into_iter().collect() }
    }
}

/// What an op's kernels spend their time on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Nature {
    /// Matrix products: as fast as the device computes.
    Products,
    /// Products of scores that are never stored, with a softmax between them.
    Attention,
    /// Passes over tensors: as fast as memory is read and written.
    Streaming,
}

/// Where an op's node runs, if its tensors are in two memories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// On the device, wherever its tensors are.
    Device,
    /// With its first result: a node that updates state follows its state.
    Result,
    /// With its operands, if they are all in one memory.
    Operands,
    /// With its operands too; and if these are in two memories, those of each may be reduced there first: the op of its
    /// results for some of the operands each is its result for all of them, to the bit.
    EachOperand,
}

/// What an optimizer's node takes and updates, as places among its operands and results. Its results from `state` on are
/// moments, in a fixed order, and then what else their format needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpdateOperands {
    /// Operand: the gradient, `F32`.
    pub gradient: usize,
    /// Operand: (1,), what the gradient is multiplied by; if it is not a number nothing is written.
    pub factor: usize,
    /// Result: the weight.
    pub weight: usize,
    /// Result, where the weight is rounded and nothing may be lost: what it lacks of single precision.
    pub remainder: Option<usize>,
    /// The first result that is state.
    pub state: usize,
}

/// What an op says about itself.
pub trait Operation {
    /// A short name, part of the names of the tensors it makes.
    fn name(&self) -> &'static str;

    /// Types of the results. Errors: `ShapeMismatch` with what was expected and found.
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError>;

    /// How output `index` is used.
    fn access(&self, _index: usize) -> Access {
        Access::Write
    }

    /// Pairs (input, output) such that the output may take the place of an input that is not read afterwards.
    fn reuse(&self) -> &'static [(usize, usize)] {
        &[]
    }

    /// Floating point operations; a multiply-add counts as two.
    fn flops(&self, io: &Io) -> u64;

    /// Bytes read from and written to device memory by a kernel that passes over its operands once.
    fn bytes_moved(&self, io: &Io) -> Bytes {
        let read = io.inputs.iter().map(|t| t.bytes()).sum::<Bytes>();
        let written = io.outputs.iter().map(|t| t.bytes()).sum::<Bytes>();
        let updated = (0..io.outputs.len())
            .filter(|&i| self.access(i) == Access::ReadWrite)
            .map(|i| io.outputs[i].bytes())
            .sum::<Bytes>();
        read + written + updated
    }

    /// What its kernels spend their time on.
    fn nature(&self) -> Nature {
        Nature::Streaming
    }

    /// Extents of the matrix product that it is, or of each of those that it is: rows, terms of a sum, columns. None for an
    /// op of another nature.
    fn product(&self, _io: &Io) -> Option<[usize; 3]> {
        None
    }

    /// Whether the op costs memory traffic but hardly any arithmetic, so that its result is better recomputed than
    /// kept.
    fn is_cheap(&self) -> bool {
        false
    }

    /// Where its nodes run.
    fn home(&self) -> Home {
        Home::Device
    }

    /// What an optimizer's node takes and updates; none for every other op.
    fn update(&self) -> Option<UpdateOperands> {
        None
    }

    /// This optimizer with its weight kept otherwise; none for an op that is no optimizer.
    fn keeping_weight(&self, _weight: WeightFormat) -> Option<Op> {
        None
    }

    /// This optimizer with its state kept otherwise; none for an op that is no optimizer.
    fn keeping_state(&self, _state: StateFormat) -> Option<Op> {
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

    /// Cases that every oracle runs: finite differences, fast against reference, bounds, scratch.
    fn examples() -> Vec<Example>
    where
        Self: Sized;
}
