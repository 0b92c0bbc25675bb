//! LLaMA-Factory's YAML, with the keys of `TrainingArguments` and its own. Source: LLaMA-Factory 0.9.5, `hparams/`,
//! `model/adapter.py`, `model/model_utils/`.

use super::hugging_face::{MICRO_BATCH, checkpoints, layers, method_of, mixed, note_evaluation, shared, shared_run};
use super::{
    ALL, ATTENTION, Found, GENERATES, NoKey, ON_PREFERENCES, PREFERENCES, SAMPLES, TRAINED, UnmodeledKeys, WEIGHTS,
    lora, named, present,
};
use crate::change::SettingChange;
use crate::document::Document;
use crate::rewrite::edit::{Edit, Literal};
use crate::run::{Attention, Checkpointing, Lora, Loss, Method, Precision, Quantized, Run, Targets};
use crate::unsure::{Effect, Part};
use crate::view::View;

pub(super) fn edits(change: &SettingChange, document: &Document) -> Result<Vec<Edit>, NoKey> {
    Ok(match change {
        SettingChange::MicroBatch(samples) => vec![
            Edit::set(present(document, MICRO_BATCH).unwrap_or(MICRO_BATCH[0]), *samples),
            Edit::replace("auto_find_batch_size", false),
        ],
        SettingChange::SeqLen(tokens) => vec![Edit::set("cutoff_len", *tokens)],
        SettingChange::TargetLen(_) => return Err(None),
        SettingChange::Checkpointing(Checkpointing::Off) => vec![Edit::set("disable_gradient_checkpointing", true)],
        SettingChange::Checkpointing(Checkpointing::Reentrant) => {
            vec![Edit::replace("disable_gradient_checkpointing", false), Edit::replace("use_reentrant_gc", true)]
        }
        SettingChange::Checkpointing(Checkpointing::NonReentrant) => {
            vec![Edit::replace("disable_gradient_checkpointing", false), Edit::set("use_reentrant_gc", false)]
        }
        SettingChange::Attention(attention) => vec![Edit::set(
            "flash_attn",
            match attention {
                Attention::Eager => "disabled",
                Attention::Sdpa => "sdpa",
                Attention::Flash2 => "fa2",
            },
        )],
        SettingChange::Loss(Loss::Liger) => vec![Edit::set("enable_liger_kernel", true)],
        SettingChange::Loss(Loss::Plain) => vec![Edit::replace("enable_liger_kernel", false)],
        SettingChange::Loss(Loss::CutCrossEntropy) => return Err(None),
        SettingChange::Precision(precision) => self::precision(*precision, document)?,
        SettingChange::Method(method) => self::method(method, document),
        other => shared(other, document)?,
    })
}

/// Whether all weights are trained. LoRA is the default.
fn trains_all(document: &Document) -> bool {
    document.plain("finetuning_type") == Some("full")
}

/// With `bf16`, trained weights are in single precision and frozen ones in bf16. With `pure_bf16`, all are in bf16. It
/// rejects a file with both.
fn precision(precision: Precision, document: &Document) -> Result<Vec<Edit>, NoKey> {
    let off = |key: &str| Edit::replace(key, false);
    let on = |key: &str| Edit::set(key, true);
    let all = trains_all(document);
    Ok(match precision {
        Precision::Fp32 if all => vec![off("bf16"), off("fp16"), off("pure_bf16")],
        Precision::PureBf16 if all => vec![off("bf16"), off("fp16"), on("pure_bf16")],
        Precision::AmpBf16 if all => vec![off("fp16"), off("pure_bf16"), on("bf16")],
        Precision::AmpFp16 if all => vec![off("bf16"), off("pure_bf16"), on("fp16")],
        Precision::PureFp16 if all => return Err(Some("it trains fully in bf16 or in mixed precision")),
        Precision::PureBf16 => vec![off("fp16"), off("pure_bf16"), on("bf16")],
        Precision::PureFp16 => vec![off("bf16"), off("pure_bf16"), on("fp16")],
        Precision::Fp32 | Precision::AmpBf16 | Precision::AmpFp16 => {
            return Err(Some("it keeps frozen weights in half precision"));
        }
    })
}

fn method(method: &Method, document: &Document) -> Vec<Edit> {
    let Some(lora) = lora(method) else {
        return vec![Edit::set("finetuning_type", "full"), Edit::replace("quantization_bit", Literal::Null)];
    };
    let mut edits = vec![Edit::set("finetuning_type", "lora"), Edit::set("lora_rank", lora.rank)];
    match named(&lora.targets) {
        Some(names) => edits.push(Edit::set("lora_target", names.join(",").as_str())),
        None if lora.targets == Targets::AllLinear => edits.push(Edit::set("lora_target", "all")),
        None => {}
    }
    edits.extend(super::lora_dropout("lora_dropout", lora.dropout, false, document));
    match method {
        Method::Qlora(_, quantized) => edits.extend([
            Edit::set("quantization_bit", 4u64),
            if quantized.double {
                Edit::replace("double_quantization", true)
            } else {
                Edit::set("double_quantization", false)
            },
        ]),
        _ => edits.push(Edit::replace("quantization_bit", Literal::Null)),
    }
    edits
}

/// Keys that do not affect GPU memory, in addition to those of `TrainingArguments`.
pub(super) const IGNORED: &[&str] = &[
    "adapter_name_or_path",
    "adapter_folder",
    "cache_dir",
    "use_fast_tokenizer",
    "split_special_tokens",
    "model_revision",
    "low_cpu_mem_usage",
    "trust_remote_code",
    "train_from_scratch",
    "print_param_status",
    "hf_hub_token",
    "ms_hub_token",
    "om_hub_token",
    "infer_*",
    "vllm_*",
    "sglang_*",
    "export_*",
    "use_kv_cache",
    "offload_folder",
    "quantization_device_map",
    "image_*",
    "video_*",
    "audio_*",
    "media_dir",
    "crop_to_patches",
    "template",
    "dataset*",
    "eval_*",
    "train_on_prompt",
    "mask_history",
    "streaming",
    "buffer_size",
    "mix_strategy",
    "interleave_probs",
    "overwrite_cache",
    "preprocessing_*",
    "max_samples",
    "ignore_pad_token_for_loss",
    "val_size",
    "packing",
    "tool_format",
    "default_system",
    "enable_thinking",
    "tokenized_path",
    "data_shared_file_system",
    "lora_alpha",
    "loraplus_*",
    "use_rslora",
    "create_new_adapter",
    "compute_accuracy",
    "disable_shuffling",
    "early_stopping_steps",
    "plot_loss",
    "freeze_vision_tower",
    "freeze_multi_modal_projector",
    "swanlab_*",
    "use_swanlab",
    "predict_with_generate",
    "do_sample",
    "temperature",
    "top_p",
    "top_k",
    "num_beams",
    "max_new_tokens",
    "repetition_penalty",
    "length_penalty",
    "skip_special_tokens",
    "moe_aux_loss_coef",
    "use_audio_in_video",
    "compute_dtype",
    "device_map",
    "model_max_length",
    "new_special_tokens_config",
    "init_special_tokens",
    "preserve_thinking",
    "ld_alpha",
    "ray_*",
    "master_addr",
    "master_port",
    "enable_torch_profiler",
    "profiler_*",
    "profile_modules",
    "task",
    "task_dir",
    "batch_size",
    "lang",
    "n_shot",
    "download_mode",
];

/// Keys that affect memory but are not modeled exactly, and how they are counted.
const UNMODELED: &[UnmodeledKeys] = &[
    (
        &["auto_find_batch_size"],
        Effect::Less(SAMPLES),
        "it may halve the micro-batch: the estimate is for the one that you set",
    ),
    (
        &["use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_muon"],
        Effect::Less(TRAINED),
        "its optimizer needs less: counted as the one in `optim`",
    ),
    (&["galore_*", "apollo_*", "badam_*"], Effect::Less(TRAINED), "not modeled"),
    (
        &["neat_packing", "block_diag_attn"],
        Effect::More(ATTENTION),
        "its masks, with one row per token, are not counted",
    ),
    (&["use_dora", "pissa_*", "module_dropout"], Effect::More(ALL), "not modeled"),
    (&["additional_target"], Effect::More(&[Part::Additions]), "fully trained modules are not counted"),
    (&["oft_*", "use_kt", "kt_*"], Effect::Either(ALL), "not modeled"),
    (
        &["use_dft_loss", "use_asft_loss", "asft_alpha", "use_eaft_loss", "eaft_alpha"],
        Effect::More(PREFERENCES),
        "counted as the plain loss",
    ),
    (&["use_hyper_parallel", "hyper_parallel_args*"], Effect::Either(ALL), "not modeled"),
    (
        &["shift_attn", "mixture_of_depths", "use_llama_pro", "rope_scaling"],
        Effect::Either(ALL),
        "it changes the model: not modeled",
    ),
    (&["use_unsloth", "use_unsloth_gc", "use_v1_kernels"], Effect::Less(SAMPLES), "Unsloth's kernels are not modeled"),
    (
        &["resize_vocab", "new_special_tokens", "add_tokens", "add_special_tokens"],
        Effect::Same,
        "the vocabulary is counted as the model's own",
    ),
    (&["fp8*", "use_mca"], Effect::Either(ALL), "not modeled"),
    (&["upcast_layernorm", "upcast_lmhead_output"], Effect::More(SAMPLES), "its casts are not counted"),
    (
        &["freeze_trainable_*", "freeze_extra_modules", "freeze_language_model"],
        Effect::Less(TRAINED),
        "all weights are counted as trained",
    ),
    (
        &["ref_model*", "reward_model*", "pref_*", "kto_*", "simpo_gamma", "dpo_label_smoothing"],
        Effect::More(PREFERENCES),
        ON_PREFERENCES,
    ),
    (&["ppo_*"], Effect::Unbounded, GENERATES),
];

/// Its defaults. Source: `hparams/`: LoRA of rank 8 on all linear layers, samples of 2,048 tokens, re-entrant checkpointing
/// unless it is disabled, scales of 4-bit weights in 8 bits; all others are those of `TrainingArguments`.
pub(super) fn read(view: &mut View) -> Found {
    let mut run = shared_run(view);
    super::assume_fused(view, &["optim", "adafactor"]);
    run.micro_batch = view.count(MICRO_BATCH).unwrap_or(8);
    run.seq_len = view.count(&["cutoff_len"]).unwrap_or(2048);
    let disabled = view.flag(&["disable_gradient_checkpointing"]) == Some(true);
    let reentrant = view.flag(&["use_reentrant_gc"]) != Some(false);
    let of_trainer = checkpoints(view);
    run.checkpointing = match (disabled, reentrant) {
        (true, _) => of_trainer,
        (false, true) => Checkpointing::Reentrant,
        (false, false) => Checkpointing::NonReentrant,
    };
    run.attention = match view.word(&["flash_attn"]).as_deref() {
        Some("disabled" | "off" | "false") => Attention::Eager,
        Some("fa2" | "fa3") => Attention::Flash2,
        _ => Attention::Sdpa,
    };
    if view.flag(&["enable_liger_kernel"]) == Some(true) {
        run.loss = Loss::Liger;
    }
    note_evaluation(view, &["per_device_eval_batch_size"], 8, run.micro_batch);
    let stage = view.word(&["stage"]);
    match stage.as_deref() {
        None | Some("pt" | "sft") => {}
        Some("dpo" | "kto" | "rm") => view.note_last(Effect::More(PREFERENCES), ON_PREFERENCES),
        Some(_) => view.note_last(Effect::Unbounded, GENERATES),
    }
    read_method(view, &mut run);
    run.precision = read_precision(view, &run.method);
    for (keys, effect, why) in UNMODELED {
        view.note_unmodeled(keys, *effect, why);
    }
    let model = view.word(&["model_name_or_path"]);
    view.ignore(IGNORED);
    (run, model, layers(view))
}

fn read_method(view: &mut View, run: &mut Run) {
    let rank = view.count(&["lora_rank"]).unwrap_or(8);
    let targets = super::targets(Some(view.list(&["lora_target"]).unwrap_or_else(|| vec!["all".to_owned()])));
    let dropout = view.real(&["lora_dropout"]).is_some_and(|dropout| dropout > 0.0);
    let bits = view.number(&["quantization_bit"]);
    if bits.is_some_and(|bits| bits != 4) {
        view.note_last(Effect::Less(WEIGHTS), "only weights in 4 bits are modeled: counted in their usual type");
    }
    if view.word(&["quantization_type"]).is_some_and(|name| name == "fp4") {
        view.note_last(Effect::Same, "counted as NF4, which has the same size");
    }
    if view.word(&["quantization_method"]).is_some_and(|name| !matches!(name.as_str(), "bnb" | "bitsandbytes")) {
        view.note_last(Effect::Either(WEIGHTS), "counted as 4 bits of bitsandbytes");
    }
    let double = view.flag(&["double_quantization"]) != Some(false);
    let quantized = bits.filter(|bits| *bits == 4).map(|_| Quantized { block: 64, double });
    match view.word(&["finetuning_type"]).as_deref() {
        None | Some("lora") => run.method = method_of(Lora { rank, targets, dropout }, quantized),
        Some("full") => {}
        Some(_) => {
            view.note_of("finetuning_type", Effect::Less(TRAINED), "not modeled: all weights are counted as trained")
        }
    }
}

/// Trained weights are cast to single precision unless `pure_bf16` is set. Frozen weights stay in half precision.
/// Source: `model/adapter.py`.
fn read_precision(view: &mut View, method: &Method) -> Precision {
    let pure = view.flag(&["pure_bf16"]) == Some(true);
    match (mixed(view), method) {
        _ if pure => Precision::PureBf16,
        (Some(half), Method::Full) => half.mixed(),
        (Some(half), _) => half.pure(),
        (None, Method::Full) => Precision::Fp32,
        (None, _) => {
            view.assume(
                Effect::More(WEIGHTS),
                "frozen weights in bf16: neither `bf16` nor `fp16` is set, so they keep their stored type",
            );
            Precision::PureBf16
        }
    }
}
