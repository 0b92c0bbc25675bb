//! What settings that are not modeled leave open of the memory that a run needs.
//! Not here: which settings these are (`keys/`), and the range that follows (`plimsoll_eager`).

use std::collections::BTreeSet;

/// What settings that are not modeled exactly leave open: the memory needed is a range.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unsure {
    /// Parts that may be smaller, or missing.
    pub less: BTreeSet<Part>,
    /// Parts that may need more.
    pub more: BTreeSet<Part>,
    /// Samples that are evaluated at a time, if they are more than those of a micro-batch.
    pub evaluated: Option<u64>,
}

/// A part of the memory of a run, or a way in which it is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Weights and casts of them.
    Weights,
    /// Gradients.
    Gradients,
    /// The optimizer's state.
    OptimizerState,
    /// What is saved for the backward pass.
    Activations,
    /// What an operation needs for a moment.
    Temporaries,
    /// Logits and their casts.
    Logits,
    /// That blocks are recomputed: with more, nothing is.
    Recomputation,
    /// That attention holds no scores: with more, it holds all.
    Attention,
    /// That AdamW is one kernel: with more, it needs temporaries as large as the weights.
    FusedUpdate,
    /// That the loss is cut: with more, all logits are there.
    Loss,
    /// That cards divide something: with more, each has all.
    Division,
    /// That additions alone are trained: with more, all weights are.
    Additions,
    /// That weights are in single precision: with less, they are in half precision.
    SinglePrecision,
}

/// How the memory needed may differ from what is counted, because of a setting that is not modeled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// By less than the margin.
    Same,
    /// These parts may be smaller, or missing.
    Less(&'static [Part]),
    /// These parts may need more: as much again.
    More(&'static [Part]),
    /// These parts may need less or more.
    Either(&'static [Part]),
    /// More samples than those of a micro-batch are evaluated at a time.
    Evaluation(u64),
    /// In a way that no range covers.
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
    /// Widens the range by what a setting may change.
    pub fn add(&mut self, effect: Effect) {
        self.less.extend(effect.less());
        self.more.extend(effect.more());
        if let Effect::Evaluation(samples) = effect {
            self.evaluated = self.evaluated.max(Some(samples));
        }
    }
}
