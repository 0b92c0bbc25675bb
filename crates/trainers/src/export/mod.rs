//! A run in a trainer's own keys: a file to begin with, and what has to be said elsewhere.
//! Not here: which keys a setting has (`keys/`), and the words for scripts (`python.rs`).

mod python;

use crate::change::Change;
use crate::kind::Kind;
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

/// A run in a trainer's keys. `model`: the model's name on the hub, or its folder.
pub fn export(kind: Kind, run: &Run, model: &str) -> Export {
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
fn beginning(kind: Kind, run: &Run, model: &str) -> String {
    let quoted = crate::rewrite::edit::Notation::Json.text(model);
    match kind {
        Kind::HuggingFace => "output_dir: out\n".to_owned(),
        Kind::Axolotl => format!("base_model: {quoted}\n"),
        Kind::LlamaFactory => format!("model_name_or_path: {quoted}\nstage: sft\ndo_train: true\n"),
        Kind::Torchtune => String::new(),
        Kind::Unsloth => format!("{{\n  \"model_name\": {quoted}\n}}\n"),
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

/// Who is told the model, where the file is not.
fn model_note(kind: Kind, model: &str) -> Option<String> {
    match kind {
        Kind::HuggingFace => Some(format!("model: {model}, by the script or its `--model_name_or_path`")),
        Kind::Torchtune => Some(format!("model, tokenizer, checkpointer, dataset: those of a recipe for {model}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
