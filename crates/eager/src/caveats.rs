//! Notes on an estimate: its assumptions, and settings without effect. Whole sentences.

use crate::modules::Source;
use crate::sharding::{self, is_parallel};
use crate::versions;
use plimsoll_graph::models::{Description, ModelConfig};
use plimsoll_trainers::{Attention, Elements, Libraries, Loss, Method, Offload, Precision, Run, Sharding};

/// The notes for a run.
pub(crate) fn of(model: &ModelConfig, run: &Run) -> Vec<String> {
    let source = Source::of(model);
    let is_modeled = source.loss(run) == run.loss;
    let mut notes = vec![];
    if source.attention(run) != run.attention {
        notes.push(match source.has_sdpa {
            true => format!(
                "transformers {} has no attention kernels for this family: estimated with eager attention.",
                run.libraries.transformers
            ),
            false => {
                "PyTorch's attention kernels do not support this family's soft caps or sinks, and transformers rejects \
                      `sdpa`: estimated with eager attention."
                    .to_owned()
            }
        });
    }
    if source.attention(run) != Attention::Eager || run.libraries != Libraries::default() {
        let Libraries { torch, transformers } = run.libraries;
        notes.push(format!("Estimated for transformers {transformers} and PyTorch {torch}."));
    }
    if run.attention == Attention::Efficient {
        notes.push(
            "The memory-efficient kernel must be selected around each step, \
             `torch.nn.attention.sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION)`, and keys and values be repeated for it."
                .to_owned(),
        );
    }
    if sharding::keeps_gradients_elsewhere(run) {
        notes.push(
            "Gradients that stay allocated between steps are modeled on a single GPU without offloading: estimated as if \
             they were freed."
                .to_owned(),
        );
    }
    match model.describe() {
        Description::Encoder(_) => notes.push(
            "Estimated as sentence-transformers trains pairs: two texts per sample, each padded to the length, mean pooling and \
             MultipleNegativesRankingLoss."
                .to_owned(),
        ),
        Description::Decoder(decoder) if decoder.blocks.iter().any(|block| block.feed_forward.experts.is_some()) => {
            notes.extend(of_experts(model, run));
        }
        Description::Decoder(_) | Description::EncoderDecoder(_) => {}
    }
    match run.loss {
        Loss::Liger if !is_modeled => {
            notes.push("Liger's kernels are not modeled for this family: estimated without them.".to_owned())
        }
        Loss::CutCrossEntropy if !is_modeled => {
            notes.push("Cut cross-entropy is not modeled for this family: estimated with all logits.".to_owned());
        }
        Loss::CutCrossEntropy if !matches!(run.precision, Precision::PureBf16 | Precision::PureFp16) => notes.push(
            "Cut cross-entropy's backward pass requires hidden states in bf16 or fp16: estimated as if it accepted these."
                .to_owned(),
        ),
        _ => {}
    }
    notes.extend(divided(run).map(str::to_owned));
    if run.offload != Offload::default() && matches!(run.sharding, Sharding::None | Sharding::Ddp { .. }) {
        notes.push(
            "The optimizer and its state are assumed to be in the host's memory; gradients stay on the GPU.".to_owned(),
        );
    }
    if sharding::frees_gradients_elsewhere(run) {
        notes.push(
            "Updates in the backward pass are modeled on a single GPU only: the range starts at no gradients, and the \
             likely values include all of them."
                .to_owned(),
        );
    }
    if is_parallel(run) {
        notes.push(
            "NCCL's buffers are estimated for 2 to 32 channels; the number depends on how the GPUs are linked."
                .to_owned(),
        );
    }
    if run.compiles {
        notes.push(
            "Fusion by `torch.compile` is not modeled: the range is from the memory that every fusion needs to the memory \
             without fusion, and the likely values are without it. CUDA graphs (`reduce-overhead`) need more."
                .to_owned(),
        );
    }
    notes
}

/// The notes on a mixture of experts.
fn of_experts(model: &ModelConfig, run: &Run) -> Vec<String> {
    let mut notes = vec![];
    if !versions::stacks_experts(&run.libraries) {
        notes.push(format!(
            "transformers {} computes each expert in a loop, whose memory depends on the routing, and each expert's layers are \
             modules of their own, which bitsandbytes quantizes: estimated as transformers 5, which computes all experts \
             together.",
            run.libraries.transformers
        ));
    } else if matches!(run.method, Method::Qlora(..)) {
        notes.push(
            "bitsandbytes quantizes no experts, because transformers 5 stores those of a layer in one tensor; PEFT's \
             `prepare_model_for_kbit_training` casts them to single precision."
                .to_owned(),
        );
    }
    if model.model_type() == "gpt_oss" {
        notes.push(
            "The published weights are in MXFP4, which transformers does not train: estimated with weights dequantized to \
             bf16, as it loads them without its kernels, or with `Mxfp4Config(dequantize=True)`."
                .to_owned(),
        );
    }
    notes
}

/// The assumptions about sharding.
fn divided(run: &Run) -> Option<&'static str> {
    let is_known = run.buffers.reduce != Elements::Unknown;
    match run.sharding {
        Sharding::Zero { stage: ..=2 } if is_known => {
            Some("DeepSpeed's stages 1 and 2 are estimated for the first GPU.")
        }
        Sharding::Zero { .. } if is_known => {
            Some("DeepSpeed's stage 3 is modeled per block, although it gathers per module.")
        }
        Sharding::Zero { stage: ..=2 } => Some(
            "DeepSpeed's buckets are assumed to have 500,000,000 elements, its default; the range is from the square of the \
             model's channels (`auto`) to two buckets (`overlap_comm`). The estimate is for the first GPU.",
        ),
        Sharding::Zero { .. } => Some(
            "DeepSpeed's stage 3 is modeled per block with its default sizes, although it gathers per module. The range \
             starts at buckets of the square of the model's channels without prefetching.",
        ),
        Sharding::Fsdp => Some(
            "FSDP is modeled as FSDP1 with one unit per block: the likely value has two gathered blocks, the range one to \
             three.",
        ),
        Sharding::None | Sharding::Ddp { .. } => None,
    }
}
