//! How a trainer is told to resume from the newest whole checkpoint. Not here: which is whole (`checkpoints.rs`).

use super::checkpoints::{self, Found};
use super::configuration::Configuration;
use plimsoll_trainers::Kind;
use std::path::PathBuf;

const KEY: &str = "resume_from_checkpoint";

/// A configuration that resumes, and what is said of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resumed {
    /// With the trainer's key set, or as it was.
    pub(crate) configuration: Configuration,
    /// From where, or why from nowhere.
    pub(crate) note: String,
}

/// The configuration, resumed from the newest whole checkpoint of the trainer's output.
pub(crate) fn resumed(configuration: &Configuration) -> Resumed {
    let as_it_is = |note: String| Resumed { configuration: configuration.clone(), note };
    let Some(kind) = configuration.command().map(|command| command.kind) else {
        return as_it_is(
            "it begins anew, unless it finds its checkpoints by itself: the trainer is not known".to_owned(),
        );
    };
    let Some(folder) = output_folder(configuration, kind) else {
        return as_it_is(format!("it begins anew: {kind} is told no output folder"));
    };
    let found = match kind {
        Kind::Torchtune => checkpoints::torchtune(&folder),
        _ => checkpoints::hugging_face(&folder),
    };
    let damaged = damaged(&found);
    let Some((path, _)) = &found.newest else {
        return as_it_is(format!("it begins anew: {} has no whole checkpoint{damaged}", folder.display()));
    };
    let value = match kind {
        // torchtune looks for its newest epoch by itself.
        Kind::Torchtune => "true".to_owned(),
        _ => path.to_string_lossy().into_owned(),
    };
    match configuration.set_keys(&[(KEY.to_owned(), Some(value))]) {
        Ok(configuration) => Resumed { configuration, note: format!("it resumes from {}{damaged}", path.display()) },
        Err(error) => as_it_is(format!("it begins anew: {} can't be named: {error}", path.display())),
    }
}

fn damaged(found: &Found) -> String {
    let one = |(path, what): &(PathBuf, String)| {
        format!("; {} is not whole: {what}", path.file_name().unwrap_or_default().to_string_lossy())
    };
    found.damaged.iter().map(one).collect()
}

/// Where the trainer puts checkpoints, by its arguments or its file.
fn output_folder(configuration: &Configuration, kind: Kind) -> Option<PathBuf> {
    let keys: &[&str] =
        if kind == Kind::Torchtune { &["checkpointer.output_dir", "output_dir"] } else { &["output_dir"] };
    keys.iter().find_map(|key| configuration.value(key)).map(PathBuf::from)
}
