//! The purpose of a storage, and the phases of a run.

use std::fmt;

/// The purpose of a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Parameters and buffers of modules.
    Weight,
    /// Gradients of parameters.
    Gradient,
    /// The optimizer's state.
    OptimizerState,
    /// Tensors that the forward pass saves for the backward pass.
    Activation,
    /// Tensors that the backward pass recomputes.
    Recomputed,
    /// Logits, their casts, and their gradients.
    Logits,
    /// Weights cast by autocast.
    Cast,
    /// Tokens, labels and masks.
    Input,
    /// Buckets for sending gradients or weights between GPUs.
    Bucket,
    /// Workspaces of libraries.
    Workspace,
    /// All other short-lived tensors.
    Temporary,
}

impl Kind {
    /// All purposes.
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

/// A phase of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Loads the model to the GPU.
    Load,
    /// A forward pass.
    Forward,
    /// A backward pass.
    Backward,
    /// Gradient clipping and the optimizer step.
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
