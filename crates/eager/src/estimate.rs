//! An estimate as plain data: the memory that a PyTorch run needs on a card.
//! Not here: how it is computed (`estimator.rs`).

use crate::card::Gpu;
use crate::usage::{Kind, Phase};
use plimsoll_graph::GraphError;
use plimsoll_units::Bytes;

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
