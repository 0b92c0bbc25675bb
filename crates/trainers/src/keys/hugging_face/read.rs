//! Reads Hugging Face's keys. Not here: adapters (`adapters.rs`), sharding (`sharding.rs`), keys whose values do
//! not matter (`words/`).

use super::{DTYPE, MICRO_BATCH, OF_TRL, SEQ_LEN, adapters, is_of_trl, layers, sharding};
use crate::keys::{
    Found, Half, LOGITS, RECOMPUTATION, SAMPLES, TEMPORARIES, assume_fused, half_called, read_optimizer,
};
use crate::run::{Attention, Checkpointing, Loss, Optimizer, Precision, Run};
use crate::unsure::{Effect, Part};
use crate::view::View;
use crate::words::Layout;

pub(in crate::keys) fn read(view: &mut View) -> Found {
    view.of_trl |= is_of_trl(view.document());
    for key in OF_TRL {
        view.request(key);
    }
    let of_trl = view.of_trl;
    let mut run = shared_run(view);
    assume_fused(view, &["optim", "adafactor"]);
    run.checkpointing = checkpoints(view);
    run.micro_batch = view.count(MICRO_BATCH).unwrap_or(8);
    note_evaluation(view, &["per_device_eval_batch_size"], 8, run.micro_batch);
    // `TrainingArguments` has no key for the sample length, but TRL and scripts do.
    run.seq_len = view.count(SEQ_LEN).unwrap_or(run.seq_len);
    run.target_len = view.count(&["max_target_length"]);
    run.precision = mixed_or_pure(view, of_trl);
    if of_trl {
        read_trl(view, &mut run);
    }
    run.method = adapters::read_method(view);
    run.attention = attention(view, &["attn_implementation"]);
    let model = view.word(&["model_name_or_path", "model_name", "model_id", "model"]);
    view.apply_words(Layout::HuggingFace);
    (run, model, layers(view))
}

/// The defaults of TRL. Source: TRL 1.16, `trainer/base_config.py`, `trainer/sft_config.py`.
fn read_trl(view: &mut View, run: &mut Run) {
    let keys = ["gradient_checkpointing", "activation_checkpointing"];
    if !keys.iter().any(|key| view.has(key)) && run.checkpointing == Checkpointing::Off {
        let reentrant = view.flag(&["gradient_checkpointing_kwargs.use_reentrant"]) == Some(true);
        run.checkpointing = if reentrant { Checkpointing::Reentrant } else { Checkpointing::NonReentrant };
        view.assume(Effect::More(RECOMPUTATION), "gradient checkpointing, the default of TRL (off in older versions)");
    }
    if !view.has("bf16") && !view.has("fp16") {
        view.assume(Effect::Same, "mixed precision in bf16, the default of TRL");
    }
    if run.loss == Loss::Plain {
        view.assume(Effect::Less(LOGITS), "all logits at once; newer versions of TRL use chunks, which need less");
    }
}

/// Reads the keys of `TrainingArguments`, for all trainers that build on it. Its defaults are those of [`Run`]. Not
/// here:
/// checkpointing, which differs between trainers.
pub(in crate::keys) fn shared_run(view: &mut View) -> Run {
    let mut run = Run::default();
    run.accumulation = view.count(&["gradient_accumulation_steps"]).unwrap_or(1);
    run.optimizer = read_optimizer(view, &["optim"], run.optimizer);
    if view.flag(&["adafactor"]) == Some(true) {
        run.optimizer = Optimizer::Adafactor;
    }
    if view.flag(&["use_liger_kernel", "use_liger"]) == Some(true) {
        run.loss = Loss::Liger;
    }
    if view.flag(&["liger_kernel_config.fused_linear_cross_entropy"]) == Some(false) && run.loss == Loss::Liger {
        view.note_last(
            Effect::Less(SAMPLES),
            "Liger kernels without the fused loss are not modeled: counted without Liger",
        );
        run.loss = Loss::Plain;
    }
    run.clips = view.real(&["max_grad_norm"]).is_none_or(|norm| norm > 0.0);
    let compiles = view.flag(&["torch_compile"]);
    let has_compiler = ["torch_compile_backend", "torch_compile_mode"].map(|key| view.request(key));
    run.compiles = compiles.unwrap_or(has_compiler.contains(&true));
    sharding::sharding(view, &mut run);
    run
}

/// Notes that evaluation has a larger batch than training. `default`: the default evaluation batch.
pub(in crate::keys) fn note_evaluation(view: &mut View, keys: &[&str], default: u64, train: u64) {
    const WHY: &str = "evaluation is not modeled, and its batch is larger than the micro-batch";
    let when = ["eval_strategy", "evaluation_strategy"].iter().find_map(|key| view.document().plain(key));
    let evaluates = when.is_some_and(|when| !matches!(when.to_ascii_lowercase().as_str(), "no" | "false"));
    match view.count(keys) {
        Some(samples) if evaluates && samples > train => view.note_last(Effect::Evaluation(samples), WHY),
        None if evaluates && default > train => {
            view.assume(Effect::Evaluation(default), format!("{default} samples: {WHY}"));
        }
        _ => {}
    }
}

/// Checkpointing in transformers uses hooks by default; before version 5 it was re-entrant.
pub(in crate::keys) fn checkpoints(view: &mut View) -> Checkpointing {
    let is_on = view.flag(&["activation_checkpointing", "gradient_checkpointing"]) == Some(true);
    let keys = ["activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"];
    let reentrant = view.flag(&keys.map(|key| format!("{key}.use_reentrant")).each_ref().map(String::as_str));
    note_skipped_layers(view);
    let of_fsdp = view.flag(&["fsdp_config.activation_checkpointing", "fsdp_config.fsdp_activation_checkpointing"]);
    match (is_on || of_fsdp == Some(true), reentrant) {
        (false, _) => Checkpointing::Off,
        (true, Some(true)) => Checkpointing::Reentrant,
        (true, _) => Checkpointing::NonReentrant,
    }
}

/// Notes that not every block is recomputed.
pub(in crate::keys) fn note_skipped_layers(view: &mut View) {
    let keys = ["activation_checkpointing_kwargs.every_n_layers", "gradient_checkpointing_kwargs.every_n_layers"];
    if view.count(&keys).is_some_and(|layers| layers > 1) {
        view.note_last(Effect::More(RECOMPUTATION), "all blocks are counted as recomputed");
    }
}

/// Precision. The type in which weights are loaded takes precedence over the type of computations.
fn mixed_or_pure(view: &mut View, of_trl: bool) -> Precision {
    let loaded = view.word(DTYPE);
    let half = loaded.as_deref().and_then(half_called);
    let is_set = view.has("bf16") || view.has("fp16");
    let mixed = mixed(view).or((of_trl && !is_set).then_some(Half::Bf16));
    match (half, mixed) {
        (Some(half), _) => half.pure(),
        (None, Some(mixed)) => {
            if loaded.as_deref().is_none_or(|name| name == "auto") {
                view.assume(
                    Effect::Less(&[Part::SinglePrecision]),
                    "weights in single precision: the settings do not set the type",
                );
            }
            mixed.mixed()
        }
        (None, None) => Precision::Fp32,
    }
}

/// The type of computations according to `bf16` and `fp16`.
pub(in crate::keys) fn mixed(view: &mut View) -> Option<Half> {
    let (bf16, fp16) = (view.flag(&["bf16"]), view.flag(&["fp16"]));
    match (bf16, fp16) {
        (Some(true), _) => Some(Half::Bf16),
        (_, Some(true)) => Some(Half::Fp16),
        _ => None,
    }
}

/// The attention implementation by its name in `from_pretrained`. The default is SDPA.
pub(in crate::keys) fn attention(view: &mut View, keys: &[&str]) -> Attention {
    match view.word(keys).as_deref() {
        Some("eager") => Attention::Eager,
        None | Some("sdpa" | "auto") => Attention::Sdpa,
        Some(name) if name.starts_with("flash_attention") || name.contains("flash-attn") => Attention::Flash2,
        Some(_) => {
            view.note_last(Effect::Either(TEMPORARIES), "not modeled: counted as SDPA");
            Attention::Sdpa
        }
    }
}
