//! Hugging Face's `TrainingArguments`, and the other arguments of scripts that parse them (TRL's `SFTConfig` and
//! `ModelConfig`, transformers' examples). Source: transformers 5.23, `training_args.py`; TRL 0.24.

use super::{AT_LOADING, Found, Half, NoKey, half_called, is_on, lora, named, optim, present};
use crate::change::Change;
use crate::document::{Document, Value};
use crate::kind::Kind;
use crate::rewrite::edit::Edit;
use crate::run::{
    Attention, Checkpointing, Lora, Loss, Method, Offload, Optimizer, Precision, Quantized, Run, Sharding, Targets,
};
use crate::view::View;
use plimsoll_units::Bytes;

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
        Change::Checkpointing(checkpointing) => self::checkpointing(*checkpointing, document),
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

/// Checkpointing with the detail that decides how it is done. transformers 5 calls it `activation_checkpointing` too.
pub(super) fn checkpointing(checkpointing: Checkpointing, document: &Document) -> Vec<Edit> {
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

/// What `from_pretrained` calls a way to compute attention.
pub(super) fn attention_name(attention: Attention) -> &'static str {
    match attention {
        Attention::Eager => "eager",
        Attention::Sdpa => "sdpa",
        Attention::Flash2 => "flash_attention_2",
    }
}

fn inline_deepspeed(document: &Document) -> bool {
    document.0.iter().any(|entry| entry.key == "deepspeed" && matches!(entry.value, Value::Map(_)))
}

/// Offload by DeepSpeed or FSDP, where the file itself says how the run is divided.
fn offload(offload: Offload, document: &Document) -> Result<Vec<Edit>, NoKey> {
    if inline_deepspeed(document) {
        return Ok(super::deepspeed::offload("deepspeed.", offload));
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
        (true, _) => return Err(Some("FSDP takes weights and the optimizer's state to the host together")),
        (false, _) => {}
    }
    Err(Some(super::IN_DEEPSPEED))
}

fn precision(precision: Precision, document: &Document) -> Result<Vec<Edit>, NoKey> {
    let dtype = present(document, DTYPE);
    let (bf16, fp16, loaded) = match precision {
        Precision::Fp32 => (false, false, "float32"),
        Precision::AmpBf16 => (true, false, "float32"),
        Precision::AmpFp16 => (false, true, "float32"),
        // Autocast would cast norms and losses up, and change nothing else.
        Precision::PureBf16 => (false, false, "bfloat16"),
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
    if let Method::Qlora(_, quantized) = method {
        edits.push(Edit::set("use_bnb_nested_quant", quantized.double));
    }
    edits.extend(super::lora_dropout("lora_dropout", lora.dropout, true, document));
    match named(&lora.targets) {
        Some(names) => edits.push(Edit::set("lora_target_modules", names)),
        None if lora.targets == Targets::AllLinear => edits.push(Edit::set("lora_target_modules", "all-linear")),
        None => edits.push(Edit::remove("lora_target_modules")),
    }
    Ok(edits)
}

/// Keys of `TrainingArguments`, of any version, on which no memory of a card depends.
pub(super) const NOTHING: &[&str] = &[
    "output_dir",
    "overwrite_output_dir",
    "do_*",
    "eval_strategy",
    "evaluation_strategy",
    "eval_steps",
    "eval_delay",
    "eval_on_start",
    "eval_do_concat_batches",
    "eval_use_gather_object",
    "eval_accumulation_steps",
    "prediction_loss_only",
    "per_gpu_eval_batch_size",
    "learning_rate",
    "weight_decay",
    "adam_*",
    "adamw_*",
    "beta1",
    "beta2",
    "num_train_epochs",
    "epochs",
    "max_steps",
    "lr_scheduler*",
    "lr",
    "warmup_*",
    "log_*",
    "logging_*",
    "save_*",
    "seed",
    "data_seed",
    "random_state",
    "jit_mode_eval",
    "enable_jit_checkpoint",
    "use_ipex",
    "tf32",
    "bf16_full_eval",
    "fp16_full_eval",
    "fp16_opt_level",
    "fp16_backend",
    "half_precision_backend",
    "local_rank",
    "ddp_backend",
    "ddp_timeout",
    "ddp_find_unused_parameters",
    "ddp_broadcast_buffers",
    "tpu_*",
    "debug",
    "dataloader_*",
    "past_index",
    "run_name",
    "disable_tqdm",
    "remove_unused_columns",
    "label_names",
    "load_best_model_at_end",
    "metric_for_best_model",
    "greater_is_better",
    "ignore_data_skip",
    "accelerator_config*",
    "group_by_length",
    "train_sampling_strategy",
    "length_column_name",
    "report_to",
    "project",
    "trackio_*",
    "skip_memory_metrics",
    "push_to_hub*",
    "resume_from_checkpoint",
    "restore_callback_states_from_checkpoint",
    "hub_*",
    "include_*",
    "mp_parameters",
    "full_determinism",
    "ray_scope",
    "average_tokens_across_devices",
    "batch_eval_metrics",
    "use_legacy_prediction_loop",
    "use_mps_device",
    "no_cuda",
    "torch_empty_cache_steps",
    "use_cache",
    "liger_kernel_config*",
    "optim_args",
    "fsdp_min_num_params",
    "fsdp_transformer_layer_cls_to_wrap",
    "fsdp_config*",
    "gradient_checkpointing_kwargs*",
    "activation_checkpointing_kwargs*",
    "torch_compile_backend",
    "torch_compile_mode",
    "xla*",
    "wandb*",
];

/// Keys of scripts beside `TrainingArguments` on which no memory of a card depends.
const OF_SCRIPTS: &[&str] = &[
    "model_revision",
    "config_name",
    "config_overrides",
    "model_type",
    "tokenizer*",
    "cache_dir",
    "use_fast_tokenizer",
    "use_auth_token",
    "token",
    "trust_remote_code",
    "low_cpu_mem_usage",
    "dataset*",
    "data_*",
    "train_*",
    "validation_*",
    "test_*",
    "max_train_samples",
    "max_eval_samples",
    "max_predict_samples",
    "overwrite_cache",
    "preprocessing_num_workers",
    "keep_linebreaks",
    "streaming",
    "text_column*",
    "summary_column",
    "source_*",
    "target_lang",
    "lang",
    "forced_bos_token",
    "num_beams",
    "generation_*",
    "predict_with_generate",
    "sortish_sampler",
    "val_max_target_length",
    "ignore_pad_token_for_loss",
    "pad_to_max_length",
    "pad_to_multiple_of",
    "resize_position_embeddings",
    "packing",
    "packing_strategy",
    "padding_free",
    "eval_packing",
    "eos_token",
    "pad_token",
    "completion_only_loss",
    "assistant_only_loss",
    "chat_template*",
    "shuffle_dataset",
    "instruction*",
    "lora_alpha",
    "lora_task_type",
    "use_rslora",
    "bnb_4bit_*",
    "config",
    "quiet",
    "name",
];

pub(super) fn read(view: &mut View) -> Found {
    let mut run = shared_run(view);
    run.micro_batch = view.count(MICRO_BATCH).unwrap_or(8);
    view.cannot(&["auto_find_batch_size"], "it halves the micro-batch by itself: counted with the one that is told");
    // TRL's `SFTConfig` has a length of its own.
    match (view.count(SEQ_LEN), view.count(&["max_target_length"])) {
        (Some(tokens), target) => (run.seq_len, run.target_len) = (tokens, target),
        (None, target) => {
            run.target_len = target;
            view.assumed
                .push(format!("samples of {} tokens: `TrainingArguments` don't say how long they are", run.seq_len));
        }
    }
    run.precision = mixed_or_pure(view);
    let quantized = quantized(view, false);
    let adapts = view.flag(&["use_peft"]);
    let rank = view.count(&["lora_r", "lora_rank"]);
    if adapts == Some(true) || adapts.is_none() && (rank.is_some() || quantized.is_some()) {
        // Source: TRL's `ModelConfig`: 16.
        let targets = super::targets(view.list(&["lora_target_modules"]));
        let dropout = view.real(&["lora_dropout"]).is_none_or(|dropout| dropout > 0.0);
        run.method = method_of(Lora { rank: rank.unwrap_or(16), targets, dropout }, quantized);
    }
    view.cannot(&["lora_modules_to_save", "use_dora"], "it is not modelled");
    run.attention = attention(view, &["attn_implementation"]);
    let model = view.word(&["model_name_or_path", "model_name", "model_id", "model"]);
    view.nothing(OF_SCRIPTS);
    (run, model, layers(view))
}

/// What is the same for all trainers that build on `TrainingArguments`, with its defaults: the run's `Default`.
pub(super) fn shared_run(view: &mut View) -> Run {
    let mut run = Run::default();
    run.accumulation = view.count(&["gradient_accumulation_steps"]).unwrap_or(1);
    run.optimizer = super::read_optimizer(view, &["optim"], run.optimizer);
    if view.flag(&["adafactor"]) == Some(true) {
        run.optimizer = Optimizer::Adafactor;
    }
    run.checkpointing = checkpoints(view);
    if view.flag(&["use_liger_kernel", "use_liger"]) == Some(true) {
        run.loss = Loss::Liger;
    }
    run.clips = view.real(&["max_grad_norm"]).is_none_or(|norm| norm > 0.0);
    let compiles = view.flag(&["torch_compile"]);
    run.compiles = compiles.unwrap_or(view.has("torch_compile_backend") || view.has("torch_compile_mode"));
    sharding(view, &mut run);
    view.cannot(&["optim_target_modules"], "its optimizer keeps less for these modules: counted as if for none");
    view.cannot(
        &["label_smoothing_factor"],
        "its loss has more temporaries as large as the logits, which are not counted",
    );
    view.cannot(&["neftune_noise_alpha"], "its noise, as large as the embeddings, is not counted");
    view.cannot(
        &["parallelism_config*"],
        "ways to divide a model among cards other than FSDP and ZeRO are not modelled",
    );
    let evaluates = ["eval_strategy", "evaluation_strategy"]
        .iter()
        .any(|key| view.document().plain(key).is_some_and(|when| !matches!(when, "no" | "false")));
    let eval = view.count(&["per_device_eval_batch_size"]);
    let train = MICRO_BATCH.iter().find_map(|key| view.document().plain(key)?.parse::<u64>().ok()).unwrap_or(8);
    if evaluates && eval.is_some_and(|samples| samples > train) {
        view.note_last("evaluation is not modelled, and has more samples at a time than training");
    }
    view.nothing(NOTHING);
    run
}

/// The newest transformers recomputes by hooks unless told otherwise; before version 5 it was re-entrant.
fn checkpoints(view: &mut View) -> Checkpointing {
    let is_on = view.flag(&["activation_checkpointing", "gradient_checkpointing"]) == Some(true);
    let keys = ["activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"];
    let reentrant = view.flag(&keys.map(|key| format!("{key}.use_reentrant")).each_ref().map(String::as_str));
    let some = keys.map(|key| format!("{key}.every_n_layers"));
    view.cannot(&some.each_ref().map(String::as_str), "every block is counted as recomputed, not only some");
    let of_fsdp = view.flag(&["fsdp_config.activation_checkpointing", "fsdp_config.fsdp_activation_checkpointing"]);
    match (is_on || of_fsdp == Some(true), reentrant) {
        (false, _) => Checkpointing::Off,
        (true, Some(true)) => Checkpointing::Reentrant,
        (true, _) => Checkpointing::NonReentrant,
    }
}

/// Source: transformers 5.23, `_process_fsdp_args`; of older versions `fsdp` is words.
fn sharding(view: &mut View, run: &mut Run) {
    let words = view.list(&["fsdp"]).unwrap_or_default();
    let is_on = |word: &String| !matches!(word.to_ascii_lowercase().as_str(), "false" | "no" | "none");
    if words.iter().any(is_on) {
        run.sharding = Sharding::Fsdp;
        if words
            .iter()
            .any(|word| matches!(word.as_str(), "shard_grad_op" | "no_shard" | "hybrid_shard" | "hybrid_shard_zero2"))
        {
            view.note_last("counted as `full_shard`, which divides weights too");
        }
    }
    let offload =
        view.flag(&["fsdp_config.cpu_offload", "fsdp_config.offload_params", "fsdp_config.fsdp_offload_params"]);
    if offload == Some(true) || words.iter().any(|word| word == "offload") {
        run.offload = Offload { optimizer: true, weights: true };
    }
    let bucket = view.count(&["ddp_bucket_cap_mb"]).map(Bytes::mib);
    match bucket {
        Some(bucket) if run.sharding == Sharding::None => run.sharding = Sharding::Ddp { bucket, views: false },
        _ => {}
    }
    if view.has("deepspeed.zero_optimization") {
        super::deepspeed::layer("deepspeed.", view, run);
    }
}

/// Files that the settings name.
pub(super) fn layers(view: &mut View) -> Vec<(Kind, String)> {
    match view.has("deepspeed") && !view.has("deepspeed.zero_optimization") {
        true => view.word(&["deepspeed"]).map(|path| (Kind::DeepSpeed, path)).into_iter().collect(),
        false => vec![],
    }
}

/// The type that weights are loaded in decides over the type that is computed in.
fn mixed_or_pure(view: &mut View) -> Precision {
    let loaded = view.word(DTYPE);
    let half = loaded.as_deref().and_then(half_called);
    let mixed = mixed(view);
    match (half, mixed) {
        (Some(half), _) => half.pure(),
        (None, Some(mixed)) => {
            if loaded.as_deref().is_none_or(|name| name == "auto") {
                view.assumed.push(
                    "weights in single precision: the settings don't say in which type they are loaded".to_owned(),
                );
            }
            mixed.mixed()
        }
        (None, None) => Precision::Fp32,
    }
}

/// The type that is computed in by `bf16` and `fp16`.
pub(super) fn mixed(view: &mut View) -> Option<Half> {
    let (bf16, fp16) = (view.flag(&["bf16"]), view.flag(&["fp16"]));
    match (bf16, fp16) {
        (Some(true), _) => Some(Half::Bf16),
        (_, Some(true)) => Some(Half::Fp16),
        _ => None,
    }
}

/// How weights are quantized, if they are. `double`: whether scales are in 8 bits unless told otherwise.
pub(super) fn quantized(view: &mut View, double: bool) -> Option<Quantized> {
    let four = view.flag(&["load_in_4bit"]) == Some(true);
    let double = view.flag(&["use_bnb_nested_quant", "bnb_4bit_use_double_quant"]).unwrap_or(double);
    view.cannot(&["load_in_8bit"], "weights in 8 bits are not modelled: counted as they are loaded otherwise");
    // Source: bitsandbytes' default for NF4.
    four.then_some(Quantized { block: 64, double })
}

/// The method of an adapter.
pub(super) fn method_of(lora: Lora, quantized: Option<Quantized>) -> Method {
    match quantized {
        Some(quantized) => Method::Qlora(lora, quantized),
        None => Method::Lora(lora),
    }
}

/// How attention is computed by the name of `from_pretrained`, whose default is SDPA where the model has it.
pub(super) fn attention(view: &mut View, keys: &[&str]) -> Attention {
    match view.word(keys).as_deref() {
        Some("eager") => Attention::Eager,
        None | Some("sdpa" | "auto") => Attention::Sdpa,
        Some(name) if name.starts_with("flash_attention") || name.contains("flash-attn") => Attention::Flash2,
        Some(_) => {
            view.note_last("not modelled: counted as SDPA");
            Attention::Sdpa
        }
    }
}
