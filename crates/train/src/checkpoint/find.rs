//! Lists checkpoints, and checks whether they are complete. An unreadable checkpoint is an error; only one that was
//! read and is damaged is skipped.

use super::hash::sum;
use super::{
    ADAPTER_CONFIG_FILE, ADAPTER_FILE, AVERAGE_FILE, CONFIG_FILE, CheckpointError, FileSum, MODEL_FILE, OPTIMIZER_FILE,
    RunState, STATE_FILE,
};
use plimsoll_data::MODEL_FILES;
use plimsoll_files::{open_inside, read_text_inside};
use plimsoll_telemetry::Branches;
use plimsoll_units::Bytes;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Longer than any state.
const LONGEST_STATE: Bytes = Bytes(1 << 20);

/// A damaged checkpoint that was skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The checkpoint.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// The result of searching a folder for the newest checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Newest {
    /// The newest complete checkpoint of the newest branch.
    pub found: Option<(PathBuf, RunState)>,
    /// Damaged checkpoints of later steps.
    pub skipped: Vec<Skipped>,
    /// Checkpoints of later steps that belong to abandoned branches.
    pub left_behind: Vec<PathBuf>,
}

/// The checkpoints in a folder as (step, path), the latest step first, without unfinished ones. Empty if the folder
/// does not exist. Errors: `Io`.
pub fn list(checkpoints: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let read = || -> io::Result<Vec<(u64, PathBuf)>> {
        let entries = match fs::read_dir(checkpoints) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(vec![]),
            entries => entries?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            found.extend(entry.file_name().to_str().and_then(step_of).map(|step| (step, entry.path())));
        }
        found.sort_by(|a, b| b.cmp(a));
        Ok(found)
    };
    read().map_err(|source| CheckpointError::Io { path: checkpoints.to_owned(), source })
}

/// The name of the checkpoint of a step.
pub(super) fn name_of(step: u64) -> String {
    format!("step-{step:06}")
}

pub(super) fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (name == name_of(step)).then_some(step)
}

/// The newest complete checkpoint of the newest branch in a folder.
/// Errors: the folder or a checkpoint can't be read; the branches are damaged.
pub fn newest_whole(checkpoints: &Path) -> Result<Newest, CheckpointError> {
    let lineage = Branches::read(checkpoints)?.lineage();
    let mut newest = Newest { found: None, skipped: vec![], left_behind: vec![] };
    for (_, path) in list(checkpoints)? {
        let state = own_state(&path);
        if state.as_ref().is_ok_and(|state| !lineage.has(state.branch, state.step)) {
            newest.left_behind.push(path);
            continue;
        }
        match state.and_then(|state| verify_files(&path, state)) {
            Ok(state) => {
                newest.found = Some((path, state));
                return Ok(newest);
            }
            Err(error) if error.is_damage() => newest.skipped.push(Skipped { path, reason: error.to_string() }),
            Err(error) => return Err(error),
        }
    }
    Ok(newest)
}

/// Verifies all checksums of a checkpoint and returns its state. Errors: `Io`, `Damaged`.
pub fn verify(path: &Path) -> Result<RunState, CheckpointError> {
    verify_files(path, own_state(path)?)
}

/// The state in a folder, with its own checksum verified; `None` if the folder has weights without a state. Errors:
/// `Io`, `Damaged`.
pub fn read_state(folder: &Path) -> Result<Option<RunState>, CheckpointError> {
    match own_state(folder) {
        Err(CheckpointError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        state => state.map(Some),
    }
}

/// The state of a checkpoint. Errors: `Io`, `Damaged`.
pub(super) fn own_state(checkpoint: &Path) -> Result<RunState, CheckpointError> {
    let path = checkpoint.join(STATE_FILE);
    match read_text_inside(&path, 1, LONGEST_STATE) {
        Ok(text) => RunState::from_json(&text).map_err(|problem| damaged(&path, problem)),
        Err(error) if error.kind() == ErrorKind::InvalidData => Err(damaged(&path, "it is not UTF-8".to_owned())),
        Err(source) => Err(CheckpointError::Io { path, source }),
    }
}

fn verify_files(path: &Path, state: RunState) -> Result<RunState, CheckpointError> {
    let state_path = path.join(STATE_FILE);
    let has_adapters = state.files.iter().any(|file| file.name == ADAPTER_FILE);
    let weights = if has_adapters { ADAPTER_FILE } else { MODEL_FILE };
    for required in [weights, OPTIMIZER_FILE, CONFIG_FILE] {
        if !state.files.iter().any(|f| f.name == required) {
            return Err(damaged(&state_path, format!("it does not list {required}")));
        }
    }
    for file in &state.files {
        // Names must not be paths: nothing outside the checkpoint is read.
        let own = [weights, OPTIMIZER_FILE, AVERAGE_FILE, CONFIG_FILE, ADAPTER_CONFIG_FILE];
        if !own.iter().chain(&MODEL_FILES).any(|name| file.name == *name) {
            return Err(damaged(&state_path, format!("it lists {:?}, which is not a checkpoint file", file.name)));
        }
        verify_file(path, file)?;
    }
    Ok(state)
}

pub(super) fn verify_file(folder: &Path, file: &FileSum) -> Result<(), CheckpointError> {
    let path = folder.join(&file.name);
    let io = |source| CheckpointError::Io { path: path.clone(), source };
    let opened = open_inside(&path, 1).map_err(io)?;
    let bytes = opened.metadata().map_err(io)?.len();
    if bytes != file.bytes {
        return Err(damaged(&path, format!("it has {bytes} bytes, but {} were written", file.bytes)));
    }
    if sum(&opened).map_err(io)?.to_hex().as_str() != file.blake3 {
        return Err(damaged(&path, "its contents changed since it was written".to_owned()));
    }
    Ok(())
}

pub(super) fn damaged(path: &Path, problem: String) -> CheckpointError {
    CheckpointError::Damaged { path: path.to_owned(), problem }
}
/// The complete checkpoints of later steps than this one, each with its state. Errors: one can't be read.
pub(crate) fn later(checkpoints: &Path, step: u64) -> Result<Vec<(PathBuf, RunState)>, CheckpointError> {
    let later = list(checkpoints)?.into_iter().filter(|(other, _)| *other > step);
    let verified = later.filter_map(|(_, path)| match verify(&path) {
        Ok(state) => Some(Ok((path, state))),
        Err(error) if error.is_damage() => None,
        Err(error) => Some(Err(error)),
    });
    verified.collect()
}
