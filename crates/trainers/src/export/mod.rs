//! Exports a run to a trainer's own keys: a settings file, and notes about settings that belong elsewhere.
//! Not here: the keys of a setting (`keys/`), and Python code for scripts (`python.rs`).

mod python;

use crate::change::SettingChange;
use crate::kind::TrainerKind;
use crate::rewrite::edit::Notation;
use crate::rewrite::{RewriteError, rewrite};
use crate::run::{Offload, Run, Sharding};

/// The environment variable for PyTorch's allocator, in all versions.
pub const ALLOC_VARIABLE: &str = "PYTORCH_CUDA_ALLOC_CONF";

/// An exported run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// The file: YAML, or JSON for DeepSpeed and Unsloth. YAML contains the notes as comments at the top.
    pub text: String,
    /// Settings that the file can't contain, and where they belong, including the allocator's variable.
    pub notes: Vec<String>,
}

/// Exports a run. `model`: the model's name on the hub, or its folder; `None` if it has neither, which adds a note.
pub fn export(kind: TrainerKind, run: &Run, model: Option<&str>) -> Export {
    let defaults = SettingChange::all_of(&Run::default());
    let mut text = initial_text(kind, run, model);
    let mut notes = vec![];
    for change in SettingChange::all_of(run) {
        match rewrite(kind, &text, std::slice::from_ref(&change)) {
            Ok(rewritten) => text = rewritten,
            // A default needs no key, except for the precision and the length, whose defaults differ between trainers.
            Err(RewriteError::NoKey { .. })
                if defaults.contains(&change)
                    && !matches!(change, SettingChange::Precision(_) | SettingChange::SeqLen(_)) => {}
            Err(RewriteError::NoKey { why, .. }) => notes.extend(elsewhere(kind, &change, why)),
            Err(error) => notes.push(error.to_string()),
        }
    }
    if kind.is_layer() {
        notes.clear();
    }
    notes.dedup();
    notes.extend(model_note(kind, model));
    notes.extend(alloc_line(run));
    if matches!(kind, TrainerKind::Unsloth | TrainerKind::DeepSpeed) {
        return Export { text, notes };
    }
    let comments = notes.iter().map(|note| format!("# {note}\n")).collect::<String>();
    Export { text: comments + &text, notes }
}

/// A shell line that sets or unsets the allocator's variable.
pub fn export_env(run: &Run) -> String {
    match alloc_line(run) {
        Some(line) => format!("{line}\n"),
        None => format!("unset {ALLOC_VARIABLE}\n"),
    }
}

/// A shell line that sets the allocator's variable; `None` for PyTorch's default.
pub fn alloc_line(run: &Run) -> Option<String> {
    let quoted = format!("'{}'", run.alloc_conf.replace('\'', "'\\''"));
    (!run.alloc_conf.is_empty()).then(|| format!("export {ALLOC_VARIABLE}={quoted}"))
}

/// A file with the keys that its parser requires.
fn initial_text(kind: TrainerKind, run: &Run, model: Option<&str>) -> String {
    let quoted = model.map(|model| Notation::Json.text(model));
    let line = quoted.as_ref().map_or(String::new(), |name| format!("{}: {name}\n", model_key(kind)));
    match kind {
        TrainerKind::HuggingFace => "output_dir: out\n".to_owned(),
        TrainerKind::Axolotl => line,
        TrainerKind::LlamaFactory => format!("{line}stage: sft\ndo_train: true\n"),
        TrainerKind::Torchtune => String::new(),
        TrainerKind::Unsloth => {
            quoted.map_or("{}\n".to_owned(), |name| format!("{{\n  \"{}\": {name}\n}}\n", model_key(kind)))
        }
        TrainerKind::DeepSpeed => {
            let (micro, times) = (run.micro_batch, run.accumulation);
            let clipping = if run.clips { "1.0" } else { "0.0" };
            format!(
                "{{\n  \"train_micro_batch_size_per_gpu\": {micro},\n  \"gradient_accumulation_steps\": {times},\n  \
                 \"gradient_clipping\": {clipping},\n  \"zero_optimization\": {{\n    \"stage\": {}\n  }}\n}}\n",
                stage(run)
            )
        }
        TrainerKind::Accelerate => format!(
            "compute_environment: LOCAL_MACHINE\ndistributed_type: \"NO\"\nmixed_precision: \"no\"\nnum_machines: 1\n\
             num_processes: {}\n",
            run.cards
        ),
    }
}

/// DeepSpeed's stage. Offload requires at least the stage that shards the offloaded part.
fn stage(run: &Run) -> u8 {
    match (run.sharding, run.offload) {
        (Sharding::Zero { stage }, _) => stage,
        (_, Offload { weights: true, .. }) => 3,
        (_, Offload { optimizer: true, .. }) => 2,
        _ => 0,
    }
}

/// Notes about where to set a setting for which the file has no key.
fn elsewhere(kind: TrainerKind, change: &SettingChange, why: Option<&'static str>) -> Vec<String> {
    match (kind, change) {
        (_, SettingChange::Offload(_) | SettingChange::Sharding(Sharding::Zero { .. }))
            if kind != TrainerKind::Torchtune =>
        {
            vec!["sharding and offload: `plimsoll estimate … --export deepspeed` writes DeepSpeed's file".to_owned()]
        }
        (TrainerKind::HuggingFace, change) => python::lines(change),
        (_, change) => {
            let why = why.map_or(String::new(), |why| format!(": {why}"));
            vec![format!("this file has no key for {change}{why}")]
        }
    }
}

/// The key for the model, for trainers whose files contain it.
fn model_key(kind: TrainerKind) -> &'static str {
    match kind {
        TrainerKind::Axolotl => "base_model",
        TrainerKind::Unsloth => "model_name",
        _ => "model_name_or_path",
    }
}

/// A note about where to set the model, if the file does not contain it.
fn model_note(kind: TrainerKind, model: Option<&str>) -> Option<String> {
    match (kind, model) {
        (TrainerKind::HuggingFace, Some(model)) => {
            Some(format!("model: {model}, set in the script or with `--model_name_or_path`"))
        }
        (TrainerKind::Torchtune, Some(model)) => {
            Some(format!("model, tokenizer, checkpointer, dataset: take them from a recipe for {model}"))
        }
        (TrainerKind::DeepSpeed | TrainerKind::Accelerate, _) | (_, Some(_)) => None,
        (TrainerKind::Torchtune, None) => {
            Some("model, tokenizer, checkpointer, dataset: no torchtune recipe has these sizes".to_owned())
        }
        (kind, None) => Some(format!(
            "model: no model on the hub has these sizes; set `{}` to the folder of its weights",
            model_key(kind)
        )),
    }
}

#[cfg(test)]
mod tests;
