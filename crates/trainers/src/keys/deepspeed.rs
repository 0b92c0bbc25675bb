//! DeepSpeed's own JSON. Values that are `auto` are the trainer's. Source: DeepSpeed's documentation of its configuration, and
//! transformers 5.23, `integrations/deepspeed.py`.

use super::NoKey;
use crate::change::Change;
use crate::document::Document;
use crate::rewrite::edit::{Edit, Literal};
use crate::run::{Offload, Precision, Sharding};

/// What stays the trainer's.
const AUTO: &str = "auto";

pub(super) fn edits(change: &Change, document: &Document) -> Result<Vec<Edit>, NoKey> {
    let own = |key: &str, value: u64| match document.plain(key) {
        Some(AUTO) | None => vec![],
        Some(_) => vec![Edit::set(key, value)],
    };
    Ok(match change {
        // `train_batch_size` is the effective batch, which stays.
        Change::MicroBatch(samples) => own("train_micro_batch_size_per_gpu", *samples),
        Change::Accumulation(times) => own("gradient_accumulation_steps", *times),
        Change::Sharding(Sharding::Zero { stage }) => {
            vec![Edit::set("zero_optimization.stage", u64::from(*stage))]
        }
        Change::Offload(offload) => self::offload("", *offload),
        Change::Precision(precision) => {
            let (bf16, fp16) = match precision {
                Precision::Fp32 => (false, false),
                Precision::PureBf16 | Precision::AmpBf16 => (true, false),
                Precision::PureFp16 | Precision::AmpFp16 => (false, true),
            };
            let edit = |key: &str, wanted: bool| match wanted {
                true => Edit::set(key, true),
                false => Edit::replace(key, false),
            };
            vec![edit("bf16.enabled", bf16), edit("fp16.enabled", fp16)]
        }
        _ => return Err(Some("the trainer's file says it")),
    })
}

/// What lies in the host's memory. `within`: the keys around DeepSpeed's, each with a dot behind it.
pub(super) fn offload(within: &str, offload: Offload) -> Vec<Edit> {
    let device = |part: &str, wanted: bool| {
        let key = format!("{within}zero_optimization.{part}.device");
        match wanted {
            true => Edit::Set(key, Literal::from("cpu")),
            false => Edit::Replace(key, Literal::from("none")),
        }
    };
    vec![device("offload_optimizer", offload.optimizer), device("offload_param", offload.weights)]
}
