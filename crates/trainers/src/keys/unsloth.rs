//! The keywords of Unsloth's notebooks (`FastLanguageModel.from_pretrained`, `get_peft_model`, `SFTConfig`), in one object.
//! Source: unsloth 2025.10, `models/loader.py`, `models/llama.py`.

use super::hugging_face::shared;
use super::{NoKey, lora, named, optim, present};
use crate::change::Change;
use crate::document::Document;
use crate::rewrite::edit::{Edit, Literal};
use crate::run::{Checkpointing, Loss, Method, Precision, Targets};

/// Names of the length of a sample, which `from_pretrained` is told.
pub(super) const SEQ_LEN: &[&str] = &["max_seq_length", "max_length"];

pub(super) fn edits(change: &Change, document: &Document) -> Result<Vec<Edit>, NoKey> {
    Ok(match change {
        Change::MicroBatch(samples) => vec![Edit::set("per_device_train_batch_size", *samples)],
        Change::SeqLen(tokens) => {
            vec![Edit::set(present(document, SEQ_LEN).unwrap_or(SEQ_LEN[0]), *tokens)]
        }
        Change::Optimizer(optimizer) => vec![Edit::set("optim", optim(*optimizer)?)],
        Change::Checkpointing(Checkpointing::Off) => vec![Edit::set("use_gradient_checkpointing", false)],
        Change::Checkpointing(_) => vec![Edit::set("use_gradient_checkpointing", true)],
        Change::Precision(precision) => self::precision(*precision)?,
        Change::Method(method) => self::method(method),
        Change::Attention(_) => return Err(Some("it has kernels of its own")),
        Change::Loss(Loss::Plain) => vec![],
        Change::Loss(_) => return Err(Some("it has a fused loss of its own")),
        Change::TargetLen(_) => return Err(None),
        other => shared(other, document)?,
    })
}

fn precision(precision: Precision) -> Result<Vec<Edit>, NoKey> {
    Ok(match precision {
        Precision::PureBf16 | Precision::AmpBf16 => {
            vec![Edit::set("bf16", true), Edit::replace("fp16", false), Edit::replace("dtype", "bfloat16")]
        }
        Precision::PureFp16 | Precision::AmpFp16 => {
            vec![Edit::set("fp16", true), Edit::replace("bf16", false), Edit::replace("dtype", "float16")]
        }
        Precision::Fp32 => return Err(Some("it loads weights in half precision")),
    })
}

fn method(method: &Method) -> Vec<Edit> {
    let Some(lora) = lora(method) else {
        return vec![Edit::set("full_finetuning", true), Edit::set("load_in_4bit", false)];
    };
    let four_bits = matches!(method, Method::Qlora(..));
    let mut edits = vec![
        Edit::replace("full_finetuning", false),
        Edit::set("load_in_4bit", four_bits),
        Edit::replace("load_in_8bit", false),
        Edit::set("r", lora.rank),
    ];
    match named(&lora.targets) {
        Some(names) => edits.push(Edit::set("target_modules", names)),
        None if lora.targets == Targets::AllLinear => {
            edits.push(Edit::set("target_modules", Literal::from("all-linear")));
        }
        None => {}
    }
    edits
}
