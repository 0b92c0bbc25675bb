//! What Hugging Face's keys come to. Not here: adapters (`adapters.rs`), how a run is divided (`sharding.rs`).

use super::others::{NOTHING, OF_SCRIPTS, UNMODELLED};
use super::{DTYPE, MICRO_BATCH, OF_TRL, SEQ_LEN, adapters, is_of_trl, layers, sharding};
use crate::keys::{
    ACTIVATIONS, ALL, Found, Half, LOGITS, OPTIMIZER_STATE, RECOMPUTATION, SAMPLES, TEMPORARIES, assume_fused,
    half_called, read_optimizer,
};
use crate::run::{Attention, Checkpointing, Loss, Optimizer, Precision, Run};
use crate::unsure::{Effect, Part};
use crate::view::View;

pub(in crate::keys) fn read(view: &mut View) -> Found {
    view.of_trl |= is_of_trl(view.document());
    for key in OF_TRL {
        view.counts(key);
    }
    let of_trl = view.of_trl;
    let mut run = shared_run(view);
    assume_fused(view, &["optim", "adafactor"]);
    run.checkpointing = checkpoints(view);
    run.micro_batch = view.count(MICRO_BATCH).unwrap_or(8);
    note_evaluation(view, &["per_device_eval_batch_size"], 8, run.micro_batch);
    view.cannot(
        &["auto_find_batch_size"],
        Effect::Less(SAMPLES),
        "it halves the micro-batch by itself: the estimate is for the one that you set",
    );
    // `TrainingArguments` don't say how long samples are, TRL's do.
    run.seq_len = view.count(SEQ_LEN).unwrap_or(run.seq_len);
    run.target_len = view.count(&["max_target_length"]);
    run.precision = mixed_or_pure(view, of_trl);
    if of_trl {
        read_trl(view, &mut run);
    }
    run.method = adapters::read_method(view);
    run.attention = attention(view, &["attn_implementation"]);
    let model = view.word(&["model_name_or_path", "model_name", "model_id", "model"]);
    for (keys, effect, why) in UNMODELLED {
        view.cannot(keys, *effect, why);
    }
    view.nothing(OF_SCRIPTS);
    (run, model, layers(view))
}

/// The defaults of TRL. Source: TRL 1.16, `trainer/base_config.py`, `trainer/sft_config.py`.
fn read_trl(view: &mut View, run: &mut Run) {
    let keys = ["gradient_checkpointing", "activation_checkpointing"];
    if !keys.iter().any(|key| view.has(key)) && run.checkpointing == Checkpointing::Off {
        let reentrant = view.flag(&["gradient_checkpointing_kwargs.use_reentrant"]) == Some(true);
        run.checkpointing = if reentrant { Checkpointing::Reentrant } else { Checkpointing::NonReentrant };
        view.assume(
            Effect::More(RECOMPUTATION),
            "gradient checkpointing, which is on by default in TRL (off in older versions)",
        );
    }
    if !view.has("bf16") && !view.has("fp16") {
        view.assume(Effect::Same, "mixed precision in bf16, the default of TRL");
    }
    if run.loss == Loss::Plain {
        view.assume(Effect::Less(LOGITS), "all logits at once; newer versions of TRL cut them, and need less");
    }
}

/// What is the same for all trainers that build on `TrainingArguments`, with its defaults: the run's `Default`. Not here:
/// checkpointing, which each turns on in its own way.
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
            "Liger's other kernels are not modelled by themselves: counted as without all of them",
        );
        run.loss = Loss::Plain;
    }
    view.cannot(
        &["torch_empty_cache_steps"],
        Effect::Less(TEMPORARIES),
        "what the allocator has cached is counted as if it kept it",
    );
    run.clips = view.real(&["max_grad_norm"]).is_none_or(|norm| norm > 0.0);
    let compiles = view.flag(&["torch_compile"]);
    let has_compiler = ["torch_compile_backend", "torch_compile_mode"].map(|key| view.counts(key));
    run.compiles = compiles.unwrap_or(has_compiler.contains(&true));
    sharding::sharding(view, &mut run);
    view.cannot(
        &["optim_target_modules"],
        Effect::Less(OPTIMIZER_STATE),
        "its optimizer keeps less for these modules: counted as if for none",
    );
    view.cannot(
        &["label_smoothing_factor"],
        Effect::More(LOGITS),
        "its loss has more temporaries as large as the logits, which are not counted",
    );
    view.cannot(
        &["neftune_noise_alpha"],
        Effect::More(ACTIVATIONS),
        "its noise, as large as the embeddings, is not counted",
    );
    view.cannot(
        &["parallelism_config*"],
        Effect::Either(ALL),
        "ways to divide a model among cards other than FSDP and ZeRO are not modelled",
    );
    view.nothing(NOTHING);
    run
}

/// Says that samples are evaluated, where they are more at a time than those of training. `default`: how many they are
/// where nothing is told.
pub(in crate::keys) fn note_evaluation(view: &mut View, keys: &[&str], default: u64, train: u64) {
    const WHY: &str = "evaluation is not modelled, and has more samples at a time than training";
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

/// The newest transformers recomputes by hooks unless told otherwise; before version 5 it was re-entrant.
pub(in crate::keys) fn checkpoints(view: &mut View) -> Checkpointing {
    let is_on = view.flag(&["activation_checkpointing", "gradient_checkpointing"]) == Some(true);
    let keys = ["activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"];
    let reentrant = view.flag(&keys.map(|key| format!("{key}.use_reentrant")).each_ref().map(String::as_str));
    let some = keys.map(|key| format!("{key}.every_n_layers"));
    view.cannot(
        &some.each_ref().map(String::as_str),
        Effect::More(RECOMPUTATION),
        "every block is counted as recomputed, not only some",
    );
    let of_fsdp = view.flag(&["fsdp_config.activation_checkpointing", "fsdp_config.fsdp_activation_checkpointing"]);
    match (is_on || of_fsdp == Some(true), reentrant) {
        (false, _) => Checkpointing::Off,
        (true, Some(true)) => Checkpointing::Reentrant,
        (true, _) => Checkpointing::NonReentrant,
    }
}

/// The type that weights are loaded in decides over the type that is computed in.
fn mixed_or_pure(view: &mut View, of_trl: bool) -> Precision {
    let loaded = view.word(DTYPE);
    let half = loaded.as_deref().and_then(half_called);
    let is_told = view.has("bf16") || view.has("fp16");
    let mixed = mixed(view).or((of_trl && !is_told).then_some(Half::Bf16));
    match (half, mixed) {
        (Some(half), _) => half.pure(),
        (None, Some(mixed)) => {
            if loaded.as_deref().is_none_or(|name| name == "auto") {
                view.assume(
                    Effect::Less(&[Part::SinglePrecision]),
                    "weights in single precision: the settings don't say in which type they are loaded",
                );
            }
            mixed.mixed()
        }
        (None, None) => Precision::Fp32,
    }
}

/// The type that is computed in by `bf16` and `fp16`.
pub(in crate::keys) fn mixed(view: &mut View) -> Option<Half> {
    let (bf16, fp16) = (view.flag(&["bf16"]), view.flag(&["fp16"]));
    match (bf16, fp16) {
        (Some(true), _) => Some(Half::Bf16),
        (_, Some(true)) => Some(Half::Fp16),
        _ => None,
    }
}

/// How attention is computed by the name of `from_pretrained`, whose default is SDPA where the model has it.
pub(in crate::keys) fn attention(view: &mut View, keys: &[&str]) -> Attention {
    match view.word(keys).as_deref() {
        Some("eager") => Attention::Eager,
        None | Some("sdpa" | "auto") => Attention::Sdpa,
        Some(name) if name.starts_with("flash_attention") || name.contains("flash-attn") => Attention::Flash2,
        Some(_) => {
            view.note_last(Effect::Either(TEMPORARIES), "not modelled: counted as SDPA");
            Attention::Sdpa
        }
    }
}
