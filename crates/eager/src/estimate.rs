//! The question and the answer: what a PyTorch run will take of a card.
//! Not here: how the step runs (`step.rs`), how its events are counted (`simulate.rs`).

use crate::card::Gpu;
use crate::frozen;
use crate::sharding::{self, Bound};
use crate::{range, simulate, step};
use plimsoll_graph::GraphError;
use plimsoll_graph::models::ModelConfig;
use plimsoll_trainers::{Method, Run};
use plimsoll_units::Bytes;
use std::fmt;

/// What a run takes of a card.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// The likely figures: of the run as described, step after step until nothing changes.
    pub likely: Footprint,
    /// The least and the most, where something can't be known or is not modeled: the context's size, what a compiler fuses.
    pub range: [Footprint; 2],
    /// Whether the card has the least.
    pub least_fits: bool,
    /// When the most was allocated.
    pub phase: Phase,
    /// What was allocated then, by kind and op, the largest first. Their bytes add up to `likely.allocated`.
    pub breakdown: Vec<Share>,
    /// The storages that were live then, the largest first; equal ones are one entry.
    pub live: Vec<Live>,
    /// What does not fit on the card, if something does not.
    pub shortfall: Option<Shortfall>,
    /// What is not modeled, or assumed; whole sentences.
    pub caveats: Vec<String>,
}

/// Memory of a process on a card, at its peak.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Tensors, as the allocator rounds them: `torch.cuda.max_memory_allocated()`.
    pub allocated: Bytes,
    /// What the allocator has of the driver: `torch.cuda.max_memory_reserved()`.
    pub reserved: Bytes,
    /// CUDA's context and modules, and NCCL's buffers among cards, which no allocator counts.
    pub context: Bytes,
}

/// Whether a run fits a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// All of the range does.
    Fits,
    /// The least does, and the most does not.
    MayFit,
    /// Not even the least does.
    DoesNotFit,
}

impl Footprint {
    /// What `nvidia-smi` shows for the process.
    pub fn process(&self) -> Bytes {
        self.reserved + self.context
    }

    /// Adds bytes that are allocated.
    pub(crate) fn grow(&mut self, bytes: Bytes) {
        self.allocated += bytes;
        self.reserved += bytes;
    }
}

/// What a storage is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Parameters, and buffers of modules.
    Weight,
    /// Gradients of parameters.
    Gradient,
    /// The optimizer's state.
    OptimizerState,
    /// What the forward pass saved for the backward pass.
    Activation,
    /// What was run again in the backward pass, for it.
    Recomputed,
    /// Logits, their casts, and their gradients.
    Logits,
    /// Casts of weights by autocast.
    Cast,
    /// Tokens, labels and masks.
    Input,
    /// Buckets in which gradients or weights are sent between cards.
    Bucket,
    /// Workspaces of libraries.
    Workspace,
    /// Everything else, for a moment.
    Temporary,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Weight,
        Self::Gradient,
        Self::OptimizerState,
        Self::Activation,
        Self::Recomputed,
        Self::Logits,
        Self::Cast,
        Self::Input,
        Self::Bucket,
        Self::Workspace,
        Self::Temporary,
    ];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Weight => "weights",
            Self::Gradient => "gradients",
            Self::OptimizerState => "optimizer state",
            Self::Activation => "saved activations",
            Self::Recomputed => "recomputed activations",
            Self::Logits => "logits",
            Self::Cast => "casts of weights",
            Self::Input => "inputs and masks",
            Self::Bucket => "buckets",
            Self::Workspace => "workspaces",
            Self::Temporary => "temporaries",
        })
    }
}

/// Parts of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// The model is put on the card.
    Load,
    /// A forward pass.
    Forward,
    /// A backward pass.
    Backward,
    /// Clipping, and the optimizer's step.
    Update,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Load => "loading",
            Self::Forward => "forward pass",
            Self::Backward => "backward pass",
            Self::Update => "optimizer step",
        })
    }
}

/// A part of what was allocated at the peak.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// What for.
    pub kind: Kind,
    /// The op that allocated it, such as `_softmax`.
    pub op: &'static str,
    /// How much, as the allocator rounds it.
    pub bytes: Bytes,
    /// How many storages.
    pub count: u64,
}

/// Storages of the same size, op and kind that were live at the peak.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Live {
    /// Bytes of each, as asked for.
    pub bytes: Bytes,
    /// How many.
    pub count: u64,
    /// The shape of the tensor that was allocated, and its type.
    pub shape: String,
    /// What for.
    pub kind: Kind,
    /// The op that allocated it.
    pub op: &'static str,
    /// The module that was running, such as `model.layers.0.mlp.act_fn`: of several the first.
    pub module: String,
}

/// A request that the card has no memory for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortfall {
    /// What was asked for.
    pub request: Bytes,
    /// By which op, in which module.
    pub op: &'static str,
    /// The module that was running.
    pub module: String,
    /// When.
    pub phase: Phase,
    /// What the process needs at the least: its peak of allocated memory, and the context.
    pub needed: Bytes,
    /// What the card has.
    pub available: Bytes,
}

/// Why there is no estimate.
#[derive(Debug, thiserror::Error)]
pub enum Cannot {
    /// The model's sizes are impossible.
    #[error(transparent)]
    Model(#[from] GraphError),
    /// A number of the run is zero.
    #[error("{0} is zero")]
    Zero(&'static str),
    /// No card has memory for it, by orders of magnitude.
    #[error("a step of {tokens} tokens of this model can't be counted in bytes")]
    TooLarge {
        /// Tokens of a micro-batch.
        tokens: u128,
    },
    /// PEFT finds no layer to add to.
    #[error("no layer's name ends in {names}; the model has {has}")]
    NoSuchLayer {
        /// What was asked for.
        names: String,
        /// Last parts of the names that linear layers have.
        has: String,
    },
    /// There is no such thing in PyTorch, or it is not modeled.
    #[error("{0}")]
    NotModeled(String),
}

/// What a run of a model takes of a card: its first step, which makes the optimizer's state, and more until nothing changes.
/// Errors: [`Cannot`] for sizes that are zero or beyond counting, and for what is not modeled.
pub fn estimate(model: &ModelConfig, run: &Run, gpu: Gpu) -> Result<Estimate, Cannot> {
    check(model, run)?;
    if frozen::divides_frozen_weights(run) {
        let whole = estimate(model, &frozen::with_whole_weights(run), gpu)?;
        return Ok(frozen::divided(whole, model, run, gpu));
    }
    let steps = step::steps(model, run, gpu, true, Bound::Likely)?;
    let mut likely = simulate::judged(&steps, run, gpu);
    range::widen(&mut likely, &steps, model, run, gpu)?;
    Ok(likely)
}

impl Estimate {
    /// Whether the run fits: as it is likely on the card that it was estimated for, and at the most in all of its memory, of
    /// which the card's may be a part.
    pub fn verdict(&self, gpu: Gpu, memory: Bytes) -> Verdict {
        let is_likely = self.shortfall.is_none() && self.likely.process() <= gpu.memory;
        match (is_likely && self.range[1].process() <= memory, self.least_fits) {
            (true, _) => Verdict::Fits,
            (false, true) => Verdict::MayFit,
            (false, false) => Verdict::DoesNotFit,
        }
    }
}

/// Refuses what can't be counted.
fn check(model: &ModelConfig, run: &Run) -> Result<(), Cannot> {
    /// Above any card's memory, and far below what overflows.
    const MOST: u128 = 1 << 50;
    model.validate()?;
    let target = run.target_len.unwrap_or(run.seq_len);
    let (rank, block) = match &run.method {
        Method::Full => (1, 1),
        Method::Lora(lora) => (lora.rank, 1),
        Method::Qlora(lora, quantized) => (lora.rank, quantized.block),
    };
    for (size, name) in [
        (run.micro_batch, "the micro-batch"),
        (run.accumulation, "the number of micro-batches"),
        (run.seq_len, "the sequence length"),
        (target, "the target's length"),
        (run.cards, "the number of cards"),
        (rank, "the rank"),
        (block, "the block of 4-bit weights"),
    ] {
        if size == 0 {
            return Err(Cannot::Zero(name));
        }
    }
    let longest = u128::from(run.seq_len.max(target));
    let tokens = u128::from(run.micro_batch).saturating_mul(longest);
    let heads = tokens.saturating_mul(longest).saturating_mul(1 << 12);
    let all = tokens.saturating_mul(model.elements_per_token()).max(heads);
    if all.max(model.parameters()) > MOST * (1 << 10) || tokens > MOST || model.parameters() > MOST {
        return Err(Cannot::TooLarge { tokens });
    }
    sharding::check(run)
}
