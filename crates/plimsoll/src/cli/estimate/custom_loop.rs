//! `--loop`, `--torch` and `--transformers`: how a run differs from one of Hugging Face's `Trainer` with the newest
//! libraries.

use clap::ValueEnum;
use plimsoll_trainers::{CustomLoop, KeptOutputs, Library, Version};

/// A difference from the training loop of Hugging Face's `Trainer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LoopDifference {
    /// A variable holds the model's outputs until the backward pass ends
    OutputsUntilBackward,
    /// A variable holds the model's outputs until the optimizer's step ends
    OutputsUntilStep,
    /// A variable holds the model's outputs until the next forward pass ends
    OutputsUntilNext,
    /// Gradients stay allocated between steps: `zero_grad(set_to_none=False)`
    ZeroedGradients,
    /// The model receives no attention mask
    NoAttentionMask,
}

impl LoopDifference {
    pub(super) fn apply_to(self, custom_loop: &mut CustomLoop) {
        match self {
            Self::OutputsUntilBackward => custom_loop.outputs = KeptOutputs::UntilBackward,
            Self::OutputsUntilStep => custom_loop.outputs = KeptOutputs::UntilStep,
            Self::OutputsUntilNext => custom_loop.outputs = KeptOutputs::UntilNext,
            Self::ZeroedGradients => custom_loop.keeps_gradients = true,
            Self::NoAttentionMask => custom_loop.omits_mask = true,
        }
    }
}

/// A version of PyTorch.
pub(super) fn torch(text: &str) -> Result<Version, String> {
    Library::Torch.read(text)
}

/// A version of transformers.
pub(super) fn transformers(text: &str) -> Result<Version, String> {
    Library::Transformers.read(text)
}
