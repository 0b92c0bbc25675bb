//! LLaMA-Factory's YAML, whose keys are those of `TrainingArguments` and its own. Source: LLaMA-Factory 0.9.4, `hparams/`,
//! `model/adapter.py`, `model/model_utils/`.

use super::hugging_face::{MICRO_BATCH, shared};
use super::{NoKey, lora, named, present};
use crate::change::Change;
use crate::document::Document;
use crate::rewrite::edit::{Edit, Literal};
use crate::run::{Attention, Checkpointing, Loss, Method, Precision, Targets};

pub(super) fn edits(change: &Change, document: &Document) -> Result<Vec<Edit>, NoKey> {
    Ok(match change {
        Change::MicroBatch(samples) => vec![
            Edit::set(present(document, MICRO_BATCH).unwrap_or(MICRO_BATCH[0]), *samples),
            Edit::replace("auto_find_batch_size", false),
        ],
        Change::SeqLen(tokens) => vec![Edit::set("cutoff_len", *tokens)],
        Change::TargetLen(_) => return Err(None),
        Change::Checkpointing(Checkpointing::Off) => vec![Edit::set("disable_gradient_checkpointing", true)],
        Change::Checkpointing(Checkpointing::Reentrant) => {
            vec![Edit::replace("disable_gradient_checkpointing", false), Edit::replace("use_reentrant_gc", true)]
        }
        Change::Checkpointing(Checkpointing::NonReentrant) => {
            vec![Edit::replace("disable_gradient_checkpointing", false), Edit::set("use_reentrant_gc", false)]
        }
        Change::Attention(attention) => vec![Edit::set(
            "flash_attn",
            match attention {
                Attention::Eager => "disabled",
                Attention::Sdpa => "sdpa",
                Attention::Flash2 => "fa2",
            },
        )],
        Change::Loss(Loss::Liger) => vec![Edit::set("enable_liger_kernel", true)],
        Change::Loss(Loss::Plain) => vec![Edit::replace("enable_liger_kernel", false)],
        Change::Loss(Loss::CutCrossEntropy) => return Err(None),
        Change::Precision(precision) => self::precision(*precision, document)?,
        Change::Method(method) => self::method(method),
        other => shared(other, document)?,
    })
}

/// Whether all weights are trained; LoRA is what it does unless told otherwise.
pub(super) fn trains_all(document: &Document) -> bool {
    document.plain("finetuning_type") == Some("full")
}

/// With `bf16` what is trained is in single precision and what is frozen in bf16; with `pure_bf16` all is in bf16, and it
/// refuses both.
fn precision(precision: Precision, document: &Document) -> Result<Vec<Edit>, NoKey> {
    let off = |key: &str| Edit::replace(key, false);
    Ok(match precision {
        Precision::Fp32 => vec![off("bf16"), off("fp16"), off("pure_bf16")],
        Precision::AmpFp16 => vec![Edit::set("fp16", true), off("bf16"), off("pure_bf16")],
        Precision::PureBf16 if trains_all(document) => vec![off("bf16"), off("fp16"), Edit::set("pure_bf16", true)],
        Precision::AmpBf16 | Precision::PureBf16 => vec![off("fp16"), off("pure_bf16"), Edit::set("bf16", true)],
        Precision::PureFp16 => return Err(Some("it trains in bf16 or in mixed precision")),
    })
}

fn method(method: &Method) -> Vec<Edit> {
    let Some(lora) = lora(method) else {
        return vec![Edit::set("finetuning_type", "full"), Edit::replace("quantization_bit", Literal::Null)];
    };
    let mut edits = vec![Edit::set("finetuning_type", "lora"), Edit::set("lora_rank", lora.rank)];
    match named(&lora.targets) {
        Some(names) => edits.push(Edit::set("lora_target", names.join(",").as_str())),
        None if lora.targets == Targets::AllLinear => edits.push(Edit::set("lora_target", "all")),
        None => {}
    }
    edits.push(match method {
        Method::Qlora(..) => Edit::set("quantization_bit", 4u64),
        _ => Edit::replace("quantization_bit", Literal::Null),
    });
    edits
}
