//! The newer layout of LLaMA-Factory's YAML, with one map per plugin. Source: LLaMA-Factory 0.9.5,
//! `src/llamafactory/v1/`:
//! `config/`, `core/base_trainer.py`, `core/model_engine.py`.

use super::hugging_face::{attention, method_of};
use super::{ALL, Found, NoKey, OPTIMIZER_STATE, TRAINED, WEIGHTS, present, targets};
use crate::change::SettingChange;
use crate::document::Document;
use crate::kind::TrainerKind;
use crate::rewrite::edit::Edit;
use crate::run::{Checkpointing, Lora, Loss, Optimizer, Precision, Quantized, Run, Sharding, Targets};
use crate::unsure::Effect;
use crate::view::View;
use crate::words::Layout;

/// Keys that only this layout has.
pub(crate) const TELLTALES: &[&str] =
    &["model_class", "peft_config", "kernel_config", "dist_config", "quant_config", "optim_config", "train_dataset"];

/// Whether a file has this layout.
pub(super) fn is_new(document: &Document) -> bool {
    present(document, TELLTALES).is_some()
}

pub(super) fn edits(change: &SettingChange) -> Result<Vec<Edit>, NoKey> {
    Ok(match change {
        SettingChange::MicroBatch(samples) => vec![Edit::set("micro_batch_size", *samples)],
        SettingChange::SeqLen(tokens) => vec![Edit::set("cutoff_len", *tokens)],
        SettingChange::Checkpointing(Checkpointing::Off) => vec![Edit::set("enable_activation_checkpointing", false)],
        SettingChange::Checkpointing(Checkpointing::NonReentrant) => {
            vec![Edit::set("enable_activation_checkpointing", true)]
        }
        SettingChange::Clips(false) => vec![Edit::set("max_grad_norm", 0u64)],
        _ => return Err(Some("not supported in its newer file layout")),
    })
}

/// Its defaults: one sample of 2,048 tokens, checkpointing with hooks, PyTorch's AdamW, weights in their stored type.
pub(super) fn read(view: &mut View) -> Found {
    let mut run = Run { optimizer: Optimizer::AdamWForeach, ..Run::default() };
    run.micro_batch = view.count(&["micro_batch_size"]).unwrap_or(1);
    if let Some(whole) = view.count(&["global_batch_size"]) {
        run.accumulation = (whole / run.micro_batch).max(1);
    }
    run.seq_len = view.count(&["cutoff_len"]).unwrap_or(2048);
    run.clips = view.real(&["max_grad_norm"]).is_none_or(|norm| norm > 0.0);
    if view.flag(&["enable_activation_checkpointing"]) != Some(false) {
        run.checkpointing = Checkpointing::NonReentrant;
    }
    run.attention = attention(view, &["flash_attn"]);
    if view.word(&["kernel_config.name"]).is_some_and(|name| name == "liger_kernel") {
        run.loss = Loss::Liger;
    }
    view.flag(&["bf16"]);
    run.precision = Precision::PureBf16;
    view.assume(Effect::More(WEIGHTS), "weights in bf16: they keep their stored type");
    if view.word(&["optim_config.name"]).is_some() {
        view.note_last(Effect::Either(OPTIMIZER_STATE), "counted as AdamW, whose state is the most similar");
    }
    if view.count(&["cp_size"]).is_some_and(|cards| cards > 1) {
        view.note_last(Effect::Less(ALL), "sequence parallelism is not modeled");
    }
    read_method(view, &mut run);
    let layers = read_sharding(view, &mut run);
    let model = view.word(&["model"]);
    view.apply_words(Layout::LlamaFactoryV1);
    (run, model, layers)
}

fn read_method(view: &mut View, run: &mut Run) {
    let rank = view.count(&["peft_config.r"]).unwrap_or(8);
    let names = view.list(&["peft_config.target_modules"]);
    let targets = names.map_or(Targets::AllLinear, |names| targets(Some(names)));
    let dropout = view.real(&["peft_config.lora_dropout"]).is_some_and(|dropout| dropout > 0.0);
    let bits = view.number(&["quant_config.quantization_bit"]);
    if bits.is_some_and(|bits| bits != 4) {
        view.note_last(Effect::Less(WEIGHTS), "only weights in 4 bits are modeled: counted in their usual type");
    }
    let quantized = bits.filter(|bits| *bits == 4).map(|_| Quantized { block: 64, double: true });
    match view.word(&["peft_config.name"]).as_deref() {
        Some("lora") => run.method = method_of(Lora { rank, targets, dropout }, quantized),
        None => {}
        Some(_) => view.note_last(Effect::Less(TRAINED), "not modeled: all weights are counted as trained"),
    }
}

/// Reads the sharding, and the path of DeepSpeed's file if there is one.
fn read_sharding(view: &mut View, run: &mut Run) -> Vec<(TrainerKind, String)> {
    match view.word(&["dist_config.name"]).as_deref() {
        Some("fsdp2") => run.sharding = Sharding::Fsdp,
        Some("deepspeed") => {
            let path = view.word(&["dist_config.config_file"]);
            return path.map(|path| (TrainerKind::DeepSpeed, path)).into_iter().collect();
        }
        Some(_) => view.note_last(Effect::Either(ALL), "not modeled: counted with a full copy on each card"),
        None => {}
    }
    vec![]
}
