//! The result of an estimate: the memory that a PyTorch run needs on a card.
//! Not here: the step (`step.rs`), the replay of its events (`simulate.rs`).

use crate::card::Gpu;
use crate::usage::{Kind, Phase};
use plimsoll_graph::GraphError;
use plimsoll_units::Bytes;

/// The memory that a run needs on a card.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// The likely footprint: the run as described, simulated until a step repeats the one before.
    pub likely: Footprint,
    /// Lower and upper bound, for values that are unknown or not modeled: the context's size, what a compiler fuses.
    pub range: [Footprint; 2],
    /// Whether the lower bound fits on the card.
    pub least_fits: bool,
    /// The phase of the peak.
    pub phase: Phase,
    /// Bytes allocated at the peak, by kind and op, the largest first. Their sum is `likely.allocated`.
    pub breakdown: Vec<Share>,
    /// The storages live at the peak, the largest first; equal ones are one entry.
    pub live: Vec<Live>,
    /// The first request that does not fit on the card; `None` if all fit.
    pub shortfall: Option<Shortfall>,
    /// Assumptions, and settings that are not modeled; whole sentences.
    pub caveats: Vec<String>,
}

/// Memory of a process on a card, at its peak.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of tensors, as the allocator rounds them: `torch.cuda.max_memory_allocated()`.
    pub allocated: Bytes,
    /// Bytes that the allocator reserved from the driver: `torch.cuda.max_memory_reserved()`.
    pub reserved: Bytes,
    /// CUDA's context and modules, and NCCL's buffers if there are several cards. No allocator counts them.
    pub context: Bytes,
}

/// Whether a run fits a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The upper bound fits.
    Fits,
    /// The lower bound fits, the upper bound does not.
    MayFit,
    /// The lower bound does not fit.
    DoesNotFit,
}

impl Footprint {
    /// The memory that `nvidia-smi` shows for the process.
    pub fn process(&self) -> Bytes {
        self.reserved + self.context
    }

    /// Adds allocated bytes.
    pub(crate) fn grow(&mut self, bytes: Bytes) {
        self.allocated += bytes;
        self.reserved += bytes;
    }
}

/// A part of what was allocated at the peak.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Its purpose.
    pub kind: Kind,
    /// The op that allocated it, such as `_softmax`.
    pub op: &'static str,
    /// Its bytes, as the allocator rounds them.
    pub bytes: Bytes,
    /// Number of storages.
    pub count: u64,
}

/// Storages of the same size, op and kind that were live at the peak.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Live {
    /// Requested bytes of each.
    pub bytes: Bytes,
    /// Number of storages.
    pub count: u64,
    /// Shape and type of the allocated tensor.
    pub shape: String,
    /// Its purpose.
    pub kind: Kind,
    /// The op that allocated it.
    pub op: &'static str,
    /// The innermost running module, such as `model.layers.0.mlp.act_fn`; the first one if there are several.
    pub module: String,
}

/// A request that the card has no memory for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortfall {
    /// Requested bytes.
    pub request: Bytes,
    /// The op that made the request.
    pub op: &'static str,
    /// The running module.
    pub module: String,
    /// The phase of the request.
    pub phase: Phase,
    /// Bytes that the process needs at least: its peak of allocated memory, and the context.
    pub needed: Bytes,
    /// Bytes of the card.
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
    /// The run exceeds any card's memory by orders of magnitude.
    #[error("a step of {tokens} tokens of this model exceeds the memory of any GPU")]
    TooLarge {
        /// Tokens per micro-batch.
        tokens: u128,
    },
    /// No layer has the name of a LoRA target.
    #[error("no layer's name ends in {names}; the model has {has}")]
    NoSuchLayer {
        /// The requested names.
        names: String,
        /// Last parts of the linear layers' names.
        has: String,
    },
    /// PEFT has no default LoRA targets for the family.
    #[error("PEFT adapts no layers of this family by default; the model has {has}")]
    NoDefaultLayers {
        /// Last parts of the linear layers' names.
        has: String,
    },
    /// The combination does not exist in PyTorch, or is not modeled.
    #[error("{0}")]
    NotModeled(String),
}

impl Estimate {
    /// Whether the run fits: the likely footprint must fit on the card of the estimate, and the upper bound in
    /// `memory`, the card's total, of which `gpu.memory` may be a part.
    pub fn verdict(&self, gpu: Gpu, memory: Bytes) -> Verdict {
        let is_likely = self.shortfall.is_none() && self.likely.process() <= gpu.memory;
        match (is_likely && self.range[1].process() <= memory, self.least_fits) {
            (true, _) => Verdict::Fits,
            (false, true) => Verdict::MayFit,
            (false, false) => Verdict::DoesNotFit,
        }
    }
}
