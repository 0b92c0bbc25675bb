//! A run in a trainer's own keys: a file to begin with, and what has to be said elsewhere.
//! Not here: which keys a setting has (`keys/`), and the words for scripts (`python.rs`).

mod python;

use crate::change::Change;
use crate::kind::Kind;
use crate::rewrite::edit::Notation;
use crate::rewrite::{RewriteError, rewrite};
use crate::run::{Offload, Run, Sharding};

/// The variable that PyTorch's allocator is told by, of all versions.
pub const ALLOC_VARIABLE: &str = "PYTORCH_CUDA_ALLOC_CONF";

/// A run in a trainer's own keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// The file: YAML, or JSON for DeepSpeed and Unsloth. In YAML the notes are comments at its beginning.
    pub text: String,
    /// What the file can't say, and who can; the allocator's line among it.
    pub notes: Vec<String>,
}

/// A run in a trainer's keys. `model`: the model's name on the hub, or its folder; none where it has neither, which a note
/// says.
pub fn export(kind: Kind, run: &Run, model: Option<&str>) -> Export {
    let usual = Change::all_of(&Run::default());
    let mut text = beginning(kind, run, model);
    let mut notes = vec![];
    for change in Change::all_of(run) {
        match rewrite(kind, &text, std::slice::from_ref(&change)) {
            Ok(rewritten) => text = rewritten,
            // Nobody has to ask for what is done anyway; types of weights are done differently by each.
            Err(RewriteError::NoKey { .. })
                if usual.contains(&change) && !matches!(change, Change::Precision(_) | Change::SeqLen(_)) => {}
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
    if matches!(kind, Kind::Unsloth | Kind::DeepSpeed) {
        return Export { text, notes };
    }
    let comments = notes.iter().map(|note| format!("# {note}\n")).collect::<String>();
    Export { text: comments + &text, notes }
}

/// The environment of a run: the allocator's line, for a shell.
pub fn export_env(run: &Run) -> String {
    match alloc_line(run) {
        Some(line) => format!("{line}\n"),
        None => format!("unset {ALLOC_VARIABLE}\n"),
    }
}

/// The line that sets the allocator, for a shell. None: PyTorch's defaults are meant.
pub fn alloc_line(run: &Run) -> Option<String> {
    let quoted = format!("'{}'", run.alloc_conf.replace('\'', "'\\''"));
    (!run.alloc_conf.is_empty()).then(|| format!("export {ALLOC_VARIABLE}={quoted}"))
}

/// What a file has before settings are written into it: keys that its parser asks for.
fn beginning(kind: Kind, run: &Run, model: Option<&str>) -> String {
    let quoted = model.map(|model| Notation::Json.text(model));
    let line = quoted.as_ref().map_or(String::new(), |name| format!("{}: {name}\n", model_key(kind)));
    match kind {
        Kind::HuggingFace => "output_dir: out\n".to_owned(),
        Kind::Axolotl => line,
        Kind::LlamaFactory => format!("{line}stage: sft\ndo_train: true\n"),
        Kind::Torchtune => String::new(),
        Kind::Unsloth => {
            quoted.map_or("{}\n".to_owned(), |name| format!("{{\n  \"{}\": {name}\n}}\n", model_key(kind)))
        }
        Kind::DeepSpeed => {
            let (micro, times) = (run.micro_batch, run.accumulation);
            let clipping = if run.clips { "1.0" } else { "0.0" };
            format!(
                "{{\n  \"train_micro_batch_size_per_gpu\": {micro},\n  \"gradient_accumulation_steps\": {times},\n  \
                 \"gradient_clipping\": {clipping},\n  \"zero_optimization\": {{\n    \"stage\": {}\n  }}\n}}\n",
                stage(run)
            )
        }
        Kind::Accelerate => format!(
            "compute_environment: LOCAL_MACHINE\ndistributed_type: \"NO\"\nmixed_precision: \"no\"\nnum_machines: 1\n\
             num_processes: {}\n",
            run.cards
        ),
    }
}

/// DeepSpeed's stage; what lies in the host's memory is divided at least.
fn stage(run: &Run) -> u8 {
    match (run.sharding, run.offload) {
        (Sharding::Zero { stage }, _) => stage,
        (_, Offload { weights: true, .. }) => 3,
        (_, Offload { optimizer: true, .. }) => 2,
        _ => 0,
    }
}

/// What says a setting for which the file has no key.
fn elsewhere(kind: Kind, change: &Change, why: Option<&'static str>) -> Vec<String> {
    match (kind, change) {
        (_, Change::Offload(_) | Change::Sharding(Sharding::Zero { .. })) if kind != Kind::Torchtune => {
            vec!["how the run is divided: `plimsoll estimate … --export deepspeed` writes DeepSpeed's file".to_owned()]
        }
        (Kind::HuggingFace, change) => python::lines(change),
        (_, change) => {
            let why = why.map_or(String::new(), |why| format!(": {why}"));
            vec![format!("no key here for {change}{why}")]
        }
    }
}

/// The key of the model, of trainers whose files name it.
fn model_key(kind: Kind) -> &'static str {
    match kind {
        Kind::Axolotl => "base_model",
        Kind::Unsloth => "model_name",
        _ => "model_name_or_path",
    }
}

/// Who is told the model, where the file is not, or does not know its name.
fn model_note(kind: Kind, model: Option<&str>) -> Option<String> {
    match (kind, model) {
        (Kind::HuggingFace, Some(model)) => {
            Some(format!("model: {model}, by the script or its `--model_name_or_path`"))
        }
        (Kind::Torchtune, Some(model)) => {
            Some(format!("model, tokenizer, checkpointer, dataset: those of a recipe for {model}"))
        }
        (Kind::DeepSpeed | Kind::Accelerate, _) | (_, Some(_)) => None,
        (Kind::Torchtune, None) => {
            Some("model, tokenizer, checkpointer, dataset: none of torchtune's recipes has these sizes".to_owned())
        }
        (kind, None) => Some(format!(
            "model: the hub has none of these sizes; `{}` takes the folder of its weights",
            model_key(kind)
        )),
    }
}

#[cfg(test)]
mod tests;
