//! What a storage is used for, and when in a run.

use std::fmt;

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
