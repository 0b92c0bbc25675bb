//! The uncertainty about a run's memory because of settings that are not modeled.
//! Not here: the settings (`keys/`), and the resulting range (`plimsoll_eager`).

use std::collections::BTreeSet;

/// The uncertainty because of settings that are not modeled exactly. It makes the memory needed a range.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unsure {
    /// Parts that may be smaller, or missing.
    pub less: BTreeSet<Part>,
    /// Parts that may need more.
    pub more: BTreeSet<Part>,
    /// The evaluation batch, if it is larger than the micro-batch.
    pub evaluated: Option<u64>,
}

/// A part of a run's memory, or a technique that saves memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Weights and their casts.
    Weights,
    /// Gradients.
    Gradients,
    /// The optimizer's state.
    OptimizerState,
    /// Tensors saved for the backward pass.
    Activations,
    /// Temporary memory of operations.
    Temporaries,
    /// Logits and their casts.
    Logits,
    /// Recomputation of blocks. "More" means without it.
    Recomputation,
    /// Attention without a score matrix. "More" means with all scores.
    Attention,
    /// AdamW in one kernel. "More" means with temporaries as large as the weights.
    FusedUpdate,
    /// A loss in chunks. "More" means with all logits at once.
    Loss,
    /// Sharding across cards. "More" means that each card has a full copy.
    Division,
    /// Training of adapters only. "More" means training of all weights.
    Additions,
    /// Weights in single precision. "Less" means half precision.
    SinglePrecision,
}

pub(crate) const ACTIVATIONS: &[Part] = &[Part::Activations];
pub(crate) const ATTENTION: &[Part] = &[Part::Attention];
pub(crate) const DIVISION: &[Part] = &[Part::Division];
pub(crate) const GRADIENTS: &[Part] = &[Part::Gradients];
pub(crate) const LOGITS: &[Part] = &[Part::Logits];
pub(crate) const OPTIMIZER_STATE: &[Part] = &[Part::OptimizerState];
pub(crate) const RECOMPUTATION: &[Part] = &[Part::Recomputation];
pub(crate) const TEMPORARIES: &[Part] = &[Part::Temporaries];
pub(crate) const WEIGHTS: &[Part] = &[Part::Weights];
/// Everything that grows with the samples.
pub(crate) const SAMPLES: &[Part] = &[Part::Activations, Part::Temporaries, Part::Logits];
/// Everything that trained weights need.
pub(crate) const TRAINED: &[Part] = &[Part::Gradients, Part::OptimizerState, Part::Activations];
/// A second model, and two samples instead of one.
pub(crate) const PREFERENCES: &[Part] = &[Part::Weights, Part::Activations, Part::Temporaries, Part::Logits];
/// Everything.
pub(crate) const ALL: &[Part] =
    &[Part::Weights, Part::Gradients, Part::OptimizerState, Part::Activations, Part::Temporaries, Part::Logits];

/// How the memory needed may differ from the estimate because of a setting that is not modeled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// By less than the margin.
    Same,
    /// These parts may be smaller, or missing.
    Less(&'static [Part]),
    /// These parts may need up to twice as much.
    More(&'static [Part]),
    /// These parts may need less or more.
    Either(&'static [Part]),
    /// The evaluation batch is this much, more than the micro-batch.
    Evaluation(u64),
    /// Without a known limit.
    Unbounded,
}

impl Effect {
    /// Parts that may need less.
    pub fn less(self) -> &'static [Part] {
        match self {
            Self::Less(parts) | Self::Either(parts) => parts,
            _ => &[],
        }
    }

    /// Parts that may need more.
    pub fn more(self) -> &'static [Part] {
        match self {
            Self::More(parts) | Self::Either(parts) => parts,
            _ => &[],
        }
    }
}

impl Unsure {
    /// Widens the range by the effect of a setting.
    pub fn add(&mut self, effect: Effect) {
        self.less.extend(effect.less());
        self.more.extend(effect.more());
        if let Effect::Evaluation(samples) = effect {
            self.evaluated = self.evaluated.max(Some(samples));
        }
    }
}
