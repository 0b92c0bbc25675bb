//! What `accelerate config` writes. Source: accelerate 1.12, `commands/config/config_args.py`, `utils/dataclasses.py`.

use super::NoKey;
use crate::change::Change;
use crate::document::Document;
use crate::rewrite::edit::Edit;
use crate::run::{Offload, Precision, Sharding};

pub(super) fn edits(change: &Change, document: &Document) -> Result<Vec<Edit>, NoKey> {
    let has_deepspeed = document.plain("distributed_type") == Some("DEEPSPEED");
    let has_fsdp = document.plain("distributed_type") == Some("FSDP");
    Ok(match change {
        Change::MicroBatch(_) => vec![],
        Change::Accumulation(times) => {
            let key = "deepspeed_config.gradient_accumulation_steps";
            match document.plain(key) {
                Some("auto") | None => vec![],
                Some(_) => vec![Edit::set(key, *times)],
            }
        }
        Change::Precision(precision) => vec![Edit::set(
            "mixed_precision",
            match precision {
                Precision::Fp32 => "no",
                Precision::PureBf16 | Precision::AmpBf16 => "bf16",
                Precision::PureFp16 | Precision::AmpFp16 => "fp16",
            },
        )],
        Change::Sharding(Sharding::Zero { stage }) => vec![
            Edit::set("distributed_type", "DEEPSPEED"),
            Edit::set("deepspeed_config.zero_stage", u64::from(*stage)),
        ],
        Change::Sharding(Sharding::Fsdp) => vec![
            Edit::set("distributed_type", "FSDP"),
            Edit::set("fsdp_config.fsdp_sharding_strategy", "FULL_SHARD"),
            Edit::set("fsdp_config.fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"),
        ],
        Change::Sharding(Sharding::Ddp { .. }) => vec![Edit::set("distributed_type", "MULTI_GPU")],
        Change::Sharding(Sharding::None) => vec![Edit::set("distributed_type", "NO")],
        Change::Offload(offload) if has_deepspeed => {
            let place = |wanted: bool| if wanted { "cpu" } else { "none" };
            vec![
                Edit::set("deepspeed_config.offload_optimizer_device", place(offload.optimizer)),
                Edit::set("deepspeed_config.offload_param_device", place(offload.weights)),
            ]
        }
        Change::Offload(offload) if has_fsdp => {
            vec![Edit::set("fsdp_config.fsdp_offload_params", *offload != Offload::default())]
        }
        Change::Offload(offload) if *offload == Offload::default() => vec![],
        _ => return Err(Some("the trainer's file says it")),
    })
}
