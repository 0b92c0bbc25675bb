//! The ops. One file each says everything about an op: results, gradient, arithmetic, memory traffic, scratch, and
//! the examples that enrol it in every oracle. What an op computes is defined by its reference kernel in `exec`.
//!
//! To add one: its file, a line in `ops!` below, a reference kernel and a fast kernel; the compiler lists the rest.
//!
//! Shape letters: B batch, T time, C channels, H heads, D head size, V vocabulary, N rows (B·T), P positions.

mod adamw;
mod add;
mod attention;
mod await_transfer;
mod cached_attention;
mod cast;
mod dropout;
mod embedding;
mod gated;
mod gelu;
mod grad_clip;
mod grad_norm;
mod head_loss;
mod layer_norm;
mod linear;
mod moving_average;
mod paired_head_loss;
mod positions;
mod relu;
mod rms_norm;
mod rotary;
mod scale;
mod take_row;
mod transfer;

pub use adamw::{AdamW, STATE_BLOCK, StateFormat};
pub use add::Add;
pub use attention::{
    ATTENTION_ROWS, Attention, AttentionExtents, AttentionGrad, DROPOUT_TOKENS, EMPTY_LSE, RelativeBias,
    dropout_site_of_head,
};
pub use await_transfer::AwaitTransfer;
pub use cached_attention::CachedAttention;
pub use cast::Cast;
pub use dropout::{Dropout, DropoutKey};
pub use embedding::{Embedding, EmbeddingGrad};
pub use gated::{Activation, Gated, GatedGrad};
pub use gelu::{Gelu, GeluGrad};
pub use grad_clip::GradClip;
pub use grad_norm::{GradNorm, NORM_BLOCK};
pub use head_loss::{HEAD_STRIP, HeadLoss, HeadLossGrad};
pub use layer_norm::{LayerNorm, LayerNormGrad, ROW_PARTS};
pub use linear::{Linear, LinearInputGrad, LinearWeightGrad, TRANSPOSED_COLUMNS, WeightLayout};
pub use moving_average::MovingAverage;
pub use paired_head_loss::{PairedHeadLoss, PairedHeadLossGrad};
pub use positions::{Positions, PositionsGrad};
pub use relu::{Relu, ReluGrad};
pub use rms_norm::{RmsNorm, RmsNormGrad};
pub use rotary::{RopeScaling, Rotary, inverse_frequencies};
pub use scale::Scale;
pub use take_row::TakeRow;
pub use transfer::Transfer;

use crate::{Backward, GraphError, TensorType};
use serde::{Deserialize, Serialize};
use units::Bytes;

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

/// The kinds of device that an op may need different scratch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// The processor's cores.
    Cpu,
    /// An NVIDIA card.
    Cuda,
}

/// Working memory that a matrix library wants on a device: on NVIDIA cards what cuBLASLt asks for on the newest of them,
/// on the processor none that a plan must know of. Source: cuBLAS documentation, section 2.1.3 (`cublasSetWorkspace`).
pub fn product_workspace(target: &Target) -> Bytes {
    match target.device {
        DeviceKind::Cpu => Bytes::ZERO,
        DeviceKind::Cuda => Bytes::mib(32),
    }
}

/// What a plan is made for, as far as ops care.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The kind of device.
    pub device: DeviceKind,
    /// Workers that run at the same time, each of which may need scratch of its own.
    pub threads: usize,
}

/// A place among a node's operands or results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    /// Operand of this index.
    Input(usize),
    /// Result of this index.
    Output(usize),
}

/// The types of a node's operands and results.
#[derive(Debug, Clone)]
pub struct Io<'a> {
    /// Operands in the op's order.
    pub inputs: Vec<&'a TensorType>,
    /// Results in the op's order.
    pub outputs: Vec<&'a TensorType>,
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

    /// Pairs (input, output) such that the output may take the place of an input which nobody reads afterwards.
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

    /// Whether the op costs memory traffic but hardly any arithmetic, so that its result is better computed anew than
    /// kept.
    fn is_cheap(&self) -> bool {
        false
    }

    /// Whether the processor's kernel takes this operand as it is if it is in half precision. All others are widened
    /// to single precision in working memory, which is [`Op::working_bytes`]' business.
    fn takes_half(&self, _operand: Operand) -> bool {
        false
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

/// How an oracle fills an operand of an example.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fill {
    /// Uniform in [-1, 1].
    Uniform,
    /// Uniform in [0.5, 1.5]: reciprocal deviations, second moments, scales.
    Positive,
    /// Integers in [0, n).
    Index(i32),
    /// Integers in [-1, n): some rows have no target.
    Target(i32),
    /// Runs of up to n equal integers, numbered from 1: documents laid one after the other.
    Runs(i32),
}

/// A case of an op.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// The op with its attributes.
    pub op: Op,
    /// Operands: type and contents.
    pub inputs: Vec<(TensorType, Fill)>,
    /// What outputs hold beforehand, where they are updated in place.
    pub state: Fill,
    /// The run's scalars.
    pub scalars: Scalars,
}

impl Example {
    /// A case with float operands filled uniformly.
    pub(crate) fn uniform(op: impl Into<Op>, shapes: &[&[usize]]) -> Self {
        let inputs = shapes.iter().map(|s| (TensorType::f32(s), Fill::Uniform)).collect();
        let scalars = Scalars {
            seed: 7,
            step: 3,
            update: 3,
            learning_rate: 1e-2,
            first_sample: 5,
            loss_scale: 0.25,
            ..Scalars::default()
        };
        Self { op: op.into(), inputs, state: Fill::Uniform, scalars }
    }

    /// Fills operand `index` otherwise.
    pub(crate) fn fill(mut self, index: usize, fill: Fill) -> Self {
        self.inputs[index].1 = fill;
        if matches!(fill, Fill::Index(_) | Fill::Target(_) | Fill::Runs(_)) {
            self.inputs[index].0.dtype = crate::DType::I32;
        }
        self
    }
}

macro_rules! ops {
    ($($name:ident),* $(,)?) => {
        /// Any op, as plain data.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[expect(missing_docs, reason = "each variant is documented at the struct that it holds")]
        pub enum Op {
            $($name($name)),*
        }

        $(impl From<$name> for Op {
            fn from(op: $name) -> Self {
                Self::$name(op)
            }
        })*

        impl std::ops::Deref for Op {
            type Target = dyn Operation;
            fn deref(&self) -> &Self::Target {
                match self {
                    $(Self::$name(op) => op),*
                }
            }
        }

        impl Op {
            /// The examples of every op.
            pub fn all_examples() -> Vec<Example> {
                let mut all = Vec::new();
                $(all.extend($name::examples());)*
                all
            }

            /// Working memory of a node on a device: the kernel's scratch, and on the processor, whose kernels compute in
            /// single precision, room for operands and results in half precision, each at a multiple of 64 bytes.
            pub fn working_bytes(&self, io: &Io, target: &Target) -> Bytes {
                let widened = match target.device {
                    DeviceKind::Cpu => self.widened(io).map(|(_, bytes)| bytes).sum(),
                    DeviceKind::Cuda => Bytes::ZERO,
                };
                widened + self.scratch(io, target)
            }

            /// What the processor widens, in the order of operands and results, and the bytes that each takes then.
            pub fn widened<'a>(&'a self, io: &'a Io) -> impl Iterator<Item = (Operand, Bytes)> + 'a {
                let inputs = io.inputs.iter().enumerate().map(|(i, ty)| (Operand::Input(i), *ty));
                let outputs = io.outputs.iter().enumerate().map(|(i, ty)| (Operand::Output(i), *ty));
                let half = inputs.chain(outputs).filter(|(at, ty)| ty.dtype.is_half() && !self.takes_half(*at));
                half.map(|(at, ty)| (at, Bytes(4 * ty.elements() as u64).align_up(64)))
            }

            /// The variants' names, so that an oracle can prove that it covers them all.
            pub const VARIANTS: &[&str] = &[$(stringify!($name)),*];

            /// This variant's name.
            pub fn variant(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => stringify!($name)),*
                }
            }
        }
    };
}

ops!(
    AdamW,
    Add,
    Attention,
    AttentionGrad,
    AwaitTransfer,
    CachedAttention,
    Cast,
    Dropout,
    Embedding,
    EmbeddingGrad,
    Gated,
    GatedGrad,
    Gelu,
    GeluGrad,
    GradClip,
    GradNorm,
    HeadLoss,
    HeadLossGrad,
    LayerNorm,
    LayerNormGrad,
    Linear,
    LinearInputGrad,
    LinearWeightGrad,
    MovingAverage,
    PairedHeadLoss,
    PairedHeadLossGrad,
    Positions,
    PositionsGrad,
    Relu,
    ReluGrad,
    RmsNorm,
    RmsNormGrad,
    Rotary,
    Scale,
    TakeRow,
    Transfer,
);

/// The operands as an array, or `ShapeMismatch` if their number is wrong.
fn operands<'a, const N: usize>(
    op: &'static str,
    inputs: &[&'a TensorType],
) -> Result<[&'a TensorType; N], GraphError> {
    <[&TensorType; N]>::try_from(inputs)
        .map_err(|_| GraphError::ShapeMismatch { op, problem: format!("takes {N} operands, found {}", inputs.len()) })
}

/// `ShapeMismatch` unless `found` is exactly `expected`.
fn expect_type(op: &'static str, what: &str, found: &TensorType, expected: &TensorType) -> Result<(), GraphError> {
    if found == expected {
        return Ok(());
    }
    let problem =
        format!("{what} must be {:?} {:?}, found {:?} {:?}", expected.dtype, expected.shape, found.dtype, found.shape);
    Err(GraphError::ShapeMismatch { op, problem })
}

/// `ShapeMismatch` unless `found` has `rank` extents, none of them zero.
fn expect_rank(op: &'static str, what: &str, found: &TensorType, rank: usize) -> Result<(), GraphError> {
    if found.shape.len() == rank && !found.shape.contains(&0) {
        return Ok(());
    }
    let problem = format!("{what} must have {rank} extents above zero, found {:?}", found.shape);
    Err(GraphError::ShapeMismatch { op, problem })
}

/// The access of an output that either adds to what is there or sets it.
const fn accumulating(accumulate: bool) -> Access {
    if accumulate { Access::ReadWrite } else { Access::Write }
}
