//! Makes a trainer resume from its newest complete checkpoint. Not here: which checkpoint is complete
//! (`checkpoints.rs`).

use super::checkpoints::{self, CheckpointSearch};
use super::configuration::Configuration;
use plimsoll_trainers::TrainerKind;
use std::path::PathBuf;

const KEY: &str = "resume_from_checkpoint";

/// A configuration that resumes, and a note for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resumed {
    /// With the trainer's key for resuming, or unchanged.
    pub(crate) configuration: Configuration,
    /// The checkpoint, or why there is none.
    pub(crate) note: String,
}

/// The configuration, resuming from the newest complete checkpoint in the trainer's output folder.
pub(crate) fn resumed(configuration: &Configuration) -> Resumed {
    let unchanged = |note: String| Resumed { configuration: configuration.clone(), note };
    let Some(kind) = configuration.command().map(|command| command.kind) else {
        return unchanged("unknown trainer: it restarts from step 0 unless it resumes on its own".to_owned());
    };
    let Some(folder) = output_folder(configuration, kind) else {
        return unchanged(format!("it restarts from step 0: {kind} has no output folder set"));
    };
    let found = match kind {
        TrainerKind::Torchtune => checkpoints::torchtune(&folder),
        _ => checkpoints::hugging_face(&folder),
    };
    let damaged = damaged(&found);
    let Some((path, _)) = &found.newest else {
        return unchanged(format!("it restarts from step 0: {} has no complete checkpoint{damaged}", folder.display()));
    };
    let value = match kind {
        // torchtune finds its newest epoch on its own.
        TrainerKind::Torchtune => "true".to_owned(),
        _ => path.to_string_lossy().into_owned(),
    };
    match configuration.set_keys(&[(KEY.to_owned(), Some(value))]) {
        Ok(configuration) => Resumed { configuration, note: format!("resuming from {}{damaged}", path.display()) },
        Err(error) => unchanged(format!("it restarts from step 0: can't resume from {}: {error}", path.display())),
    }
}

fn damaged(found: &CheckpointSearch) -> String {
    let note = |(path, what): &(PathBuf, String)| {
        format!("; {} is incomplete: {what}", path.file_name().unwrap_or_default().to_string_lossy())
    };
    found.damaged.iter().map(note).collect()
}

/// Where the trainer stores checkpoints, according to its arguments or its file.
fn output_folder(configuration: &Configuration, kind: TrainerKind) -> Option<PathBuf> {
    let keys: &[&str] =
        if kind == TrainerKind::Torchtune { &["checkpointer.output_dir", "output_dir"] } else { &["output_dir"] };
    keys.iter().find_map(|key| configuration.value(key)).map(PathBuf::from)
}
