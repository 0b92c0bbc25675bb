//! Writes a change to Hugging Face's keys. Not here: reading them (`read.rs`), and adapters (`adapters.rs`).

use super::{DTYPE, MICRO_BATCH, SEQ_LEN, adapters, is_of_trl};
use crate::change::SettingChange;
use crate::document::{Document, Value};
use crate::keys::{AT_LOADING, IN_DEEPSPEED, NoKey, deepspeed, is_on, optim, present};
use crate::rewrite::edit::Edit;
use crate::run::{Attention, Checkpointing, Loss, Offload, Optimizer, Precision, Sharding};

pub(in crate::keys) fn edits(change: &SettingChange, document: &Document) -> Result<Vec<Edit>, NoKey> {
    Ok(match change {
        SettingChange::MicroBatch(samples) => {
            let key = present(document, MICRO_BATCH).unwrap_or(MICRO_BATCH[0]);
            // `auto_find_batch_size` would halve the micro-batch and, with it, the effective batch.
            vec![Edit::set(key, *samples), Edit::replace("auto_find_batch_size", false)]
        }
        SettingChange::SeqLen(tokens) => {
            let key = present(document, SEQ_LEN).ok_or(Some("the script truncates samples"))?;
            vec![Edit::set(key, *tokens)]
        }
        SettingChange::TargetLen(tokens) => {
            let key = present(document, &["max_target_length"]).ok_or(Some("the script truncates targets"))?;
            vec![Edit::set(key, *tokens)]
        }
        SettingChange::Precision(precision) => self::precision(*precision, document)?,
        SettingChange::Attention(attention) => {
            let key = present(document, &["attn_implementation"]).ok_or(Some(AT_LOADING))?;
            vec![Edit::set(key, attention_name(*attention))]
        }
        SettingChange::Method(method) => adapters::method(method, document)?,
        other => shared(other, document)?,
    })
}

/// Edits of keys of `TrainingArguments`, for all trainers that build on it.
pub(in crate::keys) fn shared(change: &SettingChange, document: &Document) -> Result<Vec<Edit>, NoKey> {
    Ok(match change {
        SettingChange::Accumulation(times) => vec![Edit::set("gradient_accumulation_steps", *times)],
        SettingChange::Optimizer(optimizer) => {
            let mut edits = vec![Edit::set("optim", optim(*optimizer)?)];
            edits.extend((*optimizer != Optimizer::Adafactor).then(|| Edit::replace("adafactor", false)));
            edits
        }
        SettingChange::Checkpointing(checkpointing) => self::checkpointing(*checkpointing, document),
        SettingChange::Loss(Loss::Liger) => vec![Edit::set("use_liger_kernel", true)],
        SettingChange::Loss(Loss::Plain) => vec![Edit::replace("use_liger_kernel", false)],
        SettingChange::Sharding(Sharding::None) => {
            vec![Edit::remove("deepspeed"), Edit::remove("fsdp"), Edit::remove("fsdp_config")]
        }
        SettingChange::Sharding(Sharding::Ddp { bucket, .. }) => vec![Edit::set("ddp_bucket_cap_mb", bucket.0 >> 20)],
        SettingChange::Sharding(Sharding::Fsdp) => vec![Edit::set("fsdp", "full_shard auto_wrap")],
        SettingChange::Sharding(Sharding::Zero { stage }) if inline_deepspeed(document) => {
            vec![Edit::set("deepspeed.zero_optimization.stage", u64::from(*stage))]
        }
        SettingChange::Offload(offload) => self::offload(*offload, document)?,
        SettingChange::Clips(true) => match document.plain("max_grad_norm").map(str::parse::<f64>) {
            // The trainer's default.
            Some(Ok(norm)) if norm <= 0.0 => vec![Edit::set("max_grad_norm", 1u64)],
            _ => vec![],
        },
        SettingChange::Clips(false) => vec![Edit::set("max_grad_norm", 0u64)],
        SettingChange::Compiles(true) => vec![Edit::set("torch_compile", true)],
        SettingChange::Compiles(false) => vec![Edit::replace("torch_compile", false)],
        SettingChange::Sharding(Sharding::Zero { .. }) => return Err(Some(IN_DEEPSPEED)),
        _ => return Err(None),
    })
}

/// The edits for checkpointing and its kind. transformers 5 also calls it `activation_checkpointing`.
pub(in crate::keys) fn checkpointing(checkpointing: Checkpointing, document: &Document) -> Vec<Edit> {
    let newer = ["activation_checkpointing", "activation_checkpointing_kwargs"];
    let stem = if present(document, &newer).is_some() { newer[0] } else { "gradient_checkpointing" };
    match checkpointing {
        Checkpointing::Off => vec![Edit::set(stem, false)],
        kind => vec![
            Edit::set(stem, true),
            Edit::set(&format!("{stem}_kwargs.use_reentrant"), kind == Checkpointing::Reentrant),
        ],
    }
}

/// The name of an attention implementation in `from_pretrained`.
pub(in crate::keys) fn attention_name(attention: Attention) -> &'static str {
    match attention {
        Attention::Eager => "eager",
        Attention::Sdpa | Attention::Efficient => "sdpa",
        Attention::Flash2 => "flash_attention_2",
    }
}

fn inline_deepspeed(document: &Document) -> bool {
    document.0.iter().any(|entry| entry.key == "deepspeed" && matches!(entry.value, Value::Map(_)))
}

/// Offload with DeepSpeed or FSDP, if the file itself sets the sharding.
fn offload(offload: Offload, document: &Document) -> Result<Vec<Edit>, NoKey> {
    if inline_deepspeed(document) {
        return Ok(deepspeed::offload("deepspeed.", offload));
    }
    let is_sharded = is_on(document, "fsdp");
    if offload == Offload::default() {
        let mut edits = vec![Edit::replace("fsdp_config.cpu_offload", false)];
        edits.extend(is_sharded.then(|| Edit::replace("fsdp", "full_shard auto_wrap")));
        return Ok(edits);
    }
    match (is_sharded, offload) {
        (true, Offload { optimizer: true, weights: true }) => {
            return Ok(vec![Edit::set("fsdp", "full_shard auto_wrap offload")]);
        }
        (true, _) => return Err(Some("FSDP offloads weights and the optimizer state only together")),
        (false, _) => {}
    }
    Err(Some(IN_DEEPSPEED))
}

fn precision(precision: Precision, document: &Document) -> Result<Vec<Edit>, NoKey> {
    let dtype = present(document, DTYPE);
    let (bf16, fp16, loaded) = match precision {
        Precision::Fp32 => (false, false, "float32"),
        Precision::AmpBf16 => (true, false, "float32"),
        Precision::AmpFp16 => (false, true, "float32"),
        // Autocast would only cast norms and losses up.
        Precision::PureBf16 => (false, false, "bfloat16"),
        Precision::PureFp16 => (false, false, "float16"),
    };
    let on = |key: &str, wanted: bool| if wanted { Edit::set(key, true) } else { Edit::replace(key, false) };
    // TRL defaults to bf16.
    let bf16 = if is_of_trl(document) && !fp16 { Edit::set("bf16", bf16) } else { on("bf16", bf16) };
    let mut edits = vec![bf16, on("fp16", fp16)];
    match dtype {
        Some(key) => edits.push(Edit::set(key, loaded)),
        None if loaded != "float32" => return Err(Some(AT_LOADING)),
        None => {}
    }
    Ok(edits)
}
