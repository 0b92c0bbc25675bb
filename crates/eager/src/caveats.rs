//! What is assumed of a run, and what it asks for in vain; whole sentences.

use crate::modules::Source;
use crate::sharding::{self, is_parallel};
use plimsoll_graph::models::ModelConfig;
use plimsoll_trainers::{Attention, Elements, Loss, Offload, Precision, Run, Sharding};

/// What to know about the figures of a run.
pub(crate) fn of(model: &ModelConfig, run: &Run) -> Vec<String> {
    let has_fused_kernels = Source::of(model).has_fused_kernels;
    let mut said = vec![];
    if run.attention != Attention::Eager {
        // Source: pull requests 31172 and 47014 of transformers; its releases of December 2023 and June 2024.
        said.push(
            "Counted as transformers 5.23 and PyTorch 2.15 compute it. Attention by a kernel needs transformers 4.36 or newer, \
             for GPT-2 4.42, for T5 one of July 2026; for older ones, estimate eager attention."
                .to_owned(),
        );
    }
    match run.loss {
        Loss::Liger if !has_fused_kernels => {
            said.push("Liger has no kernels for this family: counted without them.".to_owned())
        }
        Loss::CutCrossEntropy if !has_fused_kernels => {
            said.push("Cut cross-entropy has no patch for this family: counted with all logits.".to_owned());
        }
        Loss::CutCrossEntropy if !matches!(run.precision, Precision::PureBf16 | Precision::PureFp16) => said.push(
            "Cut cross-entropy's backward pass takes hidden states in bf16 or fp16 only: counted as if it took these."
                .to_owned(),
        ),
        _ => {}
    }
    said.extend(divided(run).map(str::to_owned));
    if run.offload != Offload::default() && matches!(run.sharding, Sharding::None | Sharding::Ddp { .. }) {
        said.push(
            "The optimizer and its state are counted as in the host's memory; gradients stay on the card.".to_owned(),
        );
    }
    if sharding::frees_gradients_elsewhere(run) {
        said.push(
            "Updates in the backward pass are modeled on one card alone: the range is from without gradients, and the likely \
             figures have all of them."
                .to_owned(),
        );
    }
    if is_parallel(run) {
        said.push(
            "NCCL's buffers are counted for two to 32 channels; which it takes depends on how cards are linked."
                .to_owned(),
        );
    }
    if run.compiles {
        said.push(
            "What `torch.compile` fuses is not modeled: the range is from what no fusion can leave out to what is needed \
             without it, and the likely figures are those without. Graphs of CUDA (`reduce-overhead`) keep more."
                .to_owned(),
        );
    }
    said
}

/// What is assumed of a division.
fn divided(run: &Run) -> Option<&'static str> {
    let is_told = run.buffers.reduce != Elements::Unknown;
    match run.sharding {
        Sharding::Zero { stage: ..=2 } if is_told => {
            Some("DeepSpeed's stages 1 and 2 are counted as on the first card.")
        }
        Sharding::Zero { .. } if is_told => {
            Some("DeepSpeed's stage 3 is counted a block at a time; it gathers module by module.")
        }
        Sharding::Zero { stage: ..=2 } => Some(
            "DeepSpeed's buckets are counted with 500,000,000 elements, its default; the range is from the square of the \
             model's channels (`auto`) to two of them (`overlap_comm`). Counted is the first card.",
        ),
        Sharding::Zero { .. } => Some(
            "DeepSpeed's stage 3 is counted a block at a time with its default sizes; it gathers module by module. The \
             range is from buckets of the square of the model's channels, and nothing gathered ahead.",
        ),
        Sharding::Fsdp => Some(
            "FSDP is counted as its first version with a block a unit: likely two blocks are there at once, in the range \
             one to three.",
        ),
        Sharding::None | Sharding::Ddp { .. } => None,
    }
}
