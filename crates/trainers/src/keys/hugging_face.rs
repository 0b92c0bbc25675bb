//! Hugging Face's `TrainingArguments`, and the other arguments of scripts that parse them (TRL's `SFTConfig` and
//! `ModelConfig`, transformers' examples). Source: transformers 5.23, `training_args.py`; TRL 0.24.

use super::{AT_LOADING, NoKey, is_on, lora, named, optim, present};
use crate::change::Change;
use crate::document::Document;
use crate::rewrite::edit::Edit;
use crate::run::{Attention, Checkpointing, Loss, Method, Offload, Optimizer, Precision, Sharding, Targets};

/// Names of the micro-batch, the usual one first.
pub(super) const MICRO_BATCH: &[&str] =
    &["per_device_train_batch_size", "per_gpu_train_batch_size", "train_batch_size", "micro_batch_size"];

/// Names of the length of a sample, or of its source.
pub(super) const SEQ_LEN: &[&str] = &[
    "max_length",
    "max_seq_length",
    "max_seq_len",
    "block_size",
    "max_source_length",
    "model_max_length",
    "cutoff_len",
];

/// Names of the type that weights are loaded in.
pub(super) const DTYPE: &[&str] = &["dtype", "torch_dtype", "model_dtype"];

pub(super) fn edits(change: &Change, document: &Document) -> Result<Vec<Edit>, NoKey> {
    Ok(match change {
        Change::MicroBatch(samples) => {
            let key = present(document, MICRO_BATCH).unwrap_or(MICRO_BATCH[0]);
            // It would halve the micro-batch by itself, and the effective batch with it.
            vec![Edit::set(key, *samples), Edit::replace("auto_find_batch_size", false)]
        }
        Change::SeqLen(tokens) => {
            let key = present(document, SEQ_LEN).ok_or(Some("the script cuts samples"))?;
            vec![Edit::set(key, *tokens)]
        }
        Change::TargetLen(tokens) => {
            let key = present(document, &["max_target_length"]).ok_or(Some("the script cuts targets"))?;
            vec![Edit::set(key, *tokens)]
        }
        Change::Precision(precision) => self::precision(*precision, document)?,
        Change::Attention(attention) => {
            let key = present(document, &["attn_implementation"]).ok_or(Some(AT_LOADING))?;
            vec![Edit::set(key, attention_name(*attention))]
        }
        Change::Method(method) => self::method(method, document)?,
        other => shared(other, document)?,
    })
}

/// Changes whose keys are those of `TrainingArguments`, for all trainers that build on it.
pub(super) fn shared(change: &Change, document: &Document) -> Result<Vec<Edit>, NoKey> {
    Ok(match change {
        Change::Accumulation(times) => vec![Edit::set("gradient_accumulation_steps", *times)],
        Change::Optimizer(optimizer) => {
            let mut edits = vec![Edit::set("optim", optim(*optimizer)?)];
            edits.extend((*optimizer != Optimizer::Adafactor).then(|| Edit::replace("adafactor", false)));
            edits
        }
        Change::Checkpointing(checkpointing) => self::checkpointing(*checkpointing),
        Change::Loss(Loss::Liger) => vec![Edit::set("use_liger_kernel", true)],
        Change::Loss(Loss::Plain) => vec![Edit::replace("use_liger_kernel", false)],
        Change::Sharding(Sharding::None) => {
            vec![Edit::remove("deepspeed"), Edit::remove("fsdp"), Edit::remove("fsdp_config")]
        }
        Change::Sharding(Sharding::Ddp { bucket, .. }) => vec![Edit::set("ddp_bucket_cap_mb", bucket.0 >> 20)],
        Change::Sharding(Sharding::Fsdp) => vec![Edit::set("fsdp", "full_shard auto_wrap")],
        Change::Sharding(Sharding::Zero { stage }) if inline_deepspeed(document) => {
            vec![Edit::set("deepspeed.zero_optimization.stage", u64::from(*stage))]
        }
        Change::Offload(offload) => self::offload(*offload, document)?,
        Change::Clips(true) => vec![],
        Change::Clips(false) => vec![Edit::set("max_grad_norm", 0u64)],
        Change::Compiles(true) => vec![Edit::set("torch_compile", true)],
        Change::Compiles(false) => vec![Edit::replace("torch_compile", false)],
        Change::Sharding(Sharding::Zero { .. }) => return Err(Some(super::IN_DEEPSPEED)),
        _ => return Err(None),
    })
}

/// Checkpointing with the detail that decides how it is done.
pub(super) fn checkpointing(checkpointing: Checkpointing) -> Vec<Edit> {
    match checkpointing {
        Checkpointing::Off => vec![Edit::set("gradient_checkpointing", false)],
        kind => vec![
            Edit::set("gradient_checkpointing", true),
            Edit::set("gradient_checkpointing_kwargs.use_reentrant", kind == Checkpointing::Reentrant),
        ],
    }
}

/// What `from_pretrained` calls a way to compute attention.
pub(super) fn attention_name(attention: Attention) -> &'static str {
    match attention {
        Attention::Eager => "eager",
        Attention::Sdpa => "sdpa",
        Attention::Flash2 => "flash_attention_2",
    }
}

fn inline_deepspeed(document: &Document) -> bool {
    use crate::document::Value;
    document.0.iter().any(|entry| entry.key == "deepspeed" && matches!(entry.value, Value::Map(_)))
}

/// Offload by DeepSpeed or FSDP, where the file itself says how the run is divided.
fn offload(offload: Offload, document: &Document) -> Result<Vec<Edit>, NoKey> {
    if inline_deepspeed(document) {
        return Ok(super::deepspeed::offload("deepspeed.", offload));
    }
    if offload == Offload::default() {
        return Ok(vec![Edit::replace("fsdp_config.offload_params", false)]);
    }
    if is_on(document, "fsdp") {
        return Ok(vec![Edit::set("fsdp_config.offload_params", true)]);
    }
    Err(Some(super::IN_DEEPSPEED))
}

fn precision(precision: Precision, document: &Document) -> Result<Vec<Edit>, NoKey> {
    let dtype = present(document, DTYPE);
    let (bf16, fp16, loaded) = match precision {
        Precision::Fp32 => (false, false, "float32"),
        Precision::AmpBf16 => (true, false, "float32"),
        Precision::AmpFp16 => (false, true, "float32"),
        Precision::PureBf16 => (true, false, "bfloat16"),
        // A loss can't be scaled for gradients in fp16.
        Precision::PureFp16 => (false, false, "float16"),
    };
    let on = |key: &str, wanted: bool| if wanted { Edit::set(key, true) } else { Edit::replace(key, false) };
    let mut edits = vec![on("bf16", bf16), on("fp16", fp16)];
    match dtype {
        Some(key) => edits.push(Edit::set(key, loaded)),
        None if loaded != "float32" => return Err(Some(AT_LOADING)),
        None => {}
    }
    Ok(edits)
}

/// Adapters by the keys of TRL's `ModelConfig`, where the script has it.
fn method(method: &Method, document: &Document) -> Result<Vec<Edit>, NoKey> {
    let is_known = present(document, &["use_peft", "lora_r", "load_in_4bit", "lora_target_modules"]).is_some();
    let Some(lora) = lora(method) else {
        return Ok(vec![Edit::replace("use_peft", false), Edit::replace("load_in_4bit", false)]);
    };
    if !is_known {
        return Err(Some("the script makes adapters"));
    }
    let four_bits = matches!(method, Method::Qlora(..));
    let mut edits = vec![Edit::set("use_peft", true), Edit::set("lora_r", lora.rank)];
    edits.push(if four_bits { Edit::set("load_in_4bit", true) } else { Edit::replace("load_in_4bit", false) });
    match named(&lora.targets) {
        Some(names) => edits.push(Edit::set("lora_target_modules", names)),
        None if lora.targets == Targets::AllLinear => edits.push(Edit::set("lora_target_modules", "all-linear")),
        None => edits.push(Edit::remove("lora_target_modules")),
    }
    Ok(edits)
}
