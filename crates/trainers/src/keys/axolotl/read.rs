//! Reads axolotl's keys. Not here: keys whose values do not matter (`words/`).

use super::ATTENTIONS;
use crate::keys::hugging_face::{self, layers, method_of, note_evaluation, quantized, shared_run};
use crate::keys::{
    ACTIVATIONS, ALL, Found, GENERATES, ON_PREFERENCES, PREFERENCES, SAMPLES, TEMPORARIES, read_optimizer, targets,
};
use crate::run::{Attention, Checkpointing, Lora, Loss, Optimizer, Precision, Run, Targets};
use crate::unsure::Effect;
use crate::view::View;
use crate::words::Layout;

/// Its defaults. Source: `AxolotlInputConfig` and its parts: a micro-batch of 1, `sequence_len` 512, `bf16: auto`,
/// `adamw_torch_fused`, PEFT's rank of 8.
pub(in crate::keys) fn read(view: &mut View) -> Found {
    let mut run = shared_run(view);
    run.checkpointing = checkpoints(view);
    run.micro_batch = view.count(&["micro_batch_size"]).unwrap_or(1);
    if let Some(batch) = view.count(&["batch_size"]).filter(|_| !view.has("gradient_accumulation_steps")) {
        run.accumulation = (batch / run.micro_batch).max(1);
    }
    run.seq_len = view.count(&["sequence_len"]).unwrap_or(512);
    note_evaluation(view, &["eval_batch_size"], run.micro_batch, run.micro_batch);
    run.optimizer = read_optimizer(view, &["optimizer"], Optimizer::AdamWFused);
    run.attention = read_attention(view);
    read_loss(view, &mut run);
    run.precision = read_precision(view);
    read_method(view, &mut run);
    read_preferences(view);
    let model = view.word(&["base_model"]);
    view.apply_words(Layout::Axolotl);
    (run, model, layers(view))
}

/// Preference training is counted as a range. Training on generated samples is not counted.
fn read_preferences(view: &mut View) {
    match view.word(&["rl"]).unwrap_or_default().to_ascii_lowercase().as_str() {
        "" | "false" | "none" | "null" => {}
        "dpo" | "ipo" | "kto" | "orpo" | "simpo" | "cpo" | "bco" => {
            view.note_last(Effect::More(PREFERENCES), ON_PREFERENCES);
        }
        _ => view.note_last(Effect::Unbounded, GENERATES),
    }
}

fn checkpoints(view: &mut View) -> Checkpointing {
    // Source: `utils/config`: re-entrant by default.
    let reentrant = view.flag(&["gradient_checkpointing_kwargs.use_reentrant"]) != Some(false);
    hugging_face::note_skipped_layers(view);
    let how = view.word(&["gradient_checkpointing"]).unwrap_or_default();
    match how.to_ascii_lowercase().as_str() {
        "" | "false" | "no" | "off" => Checkpointing::Off,
        "offload" | "offload_disk" | "unsloth" => {
            view.note_last(Effect::Less(ACTIVATIONS), "checkpoints are counted on the card");
            Checkpointing::Reentrant
        }
        _ if reentrant => Checkpointing::Reentrant,
        _ => Checkpointing::NonReentrant,
    }
}

fn read_attention(view: &mut View) -> Attention {
    let newer = hugging_face::attention(view, &["attn_implementation"]);
    let chosen = ATTENTIONS.iter().find_map(|(key, of)| {
        (view.flag(&[key]) == Some(true)).then(|| {
            if of.is_none() {
                view.note_last(Effect::Either(TEMPORARIES), "not modeled: counted as SDPA");
            }
            of.unwrap_or(Attention::Sdpa)
        })
    });
    chosen.unwrap_or(newer)
}

fn read_loss(view: &mut View, run: &mut Run) {
    let liger = view.flag(&["liger_fused_linear_cross_entropy"]) == Some(true);
    let cut = view.flag(&["cut_cross_entropy"]) == Some(true);
    let plugins = view.list(&["plugins"]).unwrap_or_default();
    let has = |part: &str| plugins.iter().any(|plugin| plugin.contains(part));
    // The plugin alone turns it on.
    if cut || has("cut_cross_entropy") && !view.has("cut_cross_entropy") {
        run.loss = Loss::CutCrossEntropy;
    } else if liger {
        run.loss = Loss::Liger;
    }
    if run.loss == Loss::Plain {
        view.note_unmodeled(
            &["liger_*"],
            Effect::Less(SAMPLES),
            "Liger kernels without the fused loss are not modeled: counted without Liger",
        );
    }
}

/// Weights are loaded in the type of the computations. `auto` is bf16 on GPUs that support it, as all since 2020 do.
fn read_precision(view: &mut View) -> Precision {
    let pure = |view: &mut View, key| view.flag(&[key]) == Some(true);
    let bf16 = view.word(&["bf16"]).unwrap_or_else(|| "auto".to_owned()).to_ascii_lowercase();
    let (bfloat16, fp16, float16) = (pure(view, "bfloat16"), pure(view, "fp16"), pure(view, "float16"));
    match bf16.as_str() {
        "true" | "full" | "yes" | "on" => Precision::PureBf16,
        _ if bfloat16 => Precision::PureBf16,
        _ if fp16 || float16 => Precision::PureFp16,
        "auto" => Precision::PureBf16,
        _ => Precision::Fp32,
    }
}

fn read_method(view: &mut View, run: &mut Run) {
    let adapter = view.word(&["adapter"]).unwrap_or_default();
    // Source: `loaders/model.py`: NF4 with scales in 8 bits.
    let double = view.flag(&["bnb_config_kwargs.bnb_4bit_use_double_quant"]) != Some(false);
    let quantized = quantized(view, double);
    let rank = view.count(&["lora_r"]).unwrap_or(8);
    let all = view.flag(&["lora_target_linear"]) == Some(true);
    let names = view.list(&["lora_target_modules"]);
    let targets = if all { Targets::AllLinear } else { targets(names) };
    let dropout = view.real(&["lora_dropout"]).is_some_and(|dropout| dropout > 0.0);
    let lora = Lora { rank, targets, dropout };
    match adapter.as_str() {
        "" | "false" | "none" => {}
        "lora" | "qlora" => run.method = method_of(lora, quantized),
        _ => view.note_of("adapter", Effect::Less(ALL), "adapter not modeled: all weights are counted as trained"),
    }
}
