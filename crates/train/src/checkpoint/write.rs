//! Writes a checkpoint: into a temporary folder, with each file synced and hashed, then renames the folder and syncs
//! its parent. Older checkpoints are deleted only after the rename.

use super::contents::{Content, contents};
use super::find::{list, name_of, own_state, step_of};
use super::hash::sum;
use super::size::room;
use super::{ADAPTER_CONFIG_FILE, CONFIG_FILE, CheckpointError, FileSum, ModelFolder, RunState, STATE_FILE, tensors};
use crate::folder::CHECKPOINTS;
use crate::{Engine, RunFolder, TrainError};
use plimsoll_files::{Disk, free_space, is_there};
use plimsoll_telemetry::Branches;
use plimsoll_units::Bytes;
use std::cell::OnceCell;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// A checkpoint that is complete on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// Its path.
    pub path: PathBuf,
    /// Size of all its files.
    pub bytes: u64,
}

/// Which checkpoints to keep.
#[derive(Debug, Clone, Copy)]
pub struct Keep<'p> {
    /// Number of the run's newest checkpoints.
    pub most: usize,
    /// A checkpoint known to be complete, if there is one: if the disk lacks space, the others older than the new one
    /// are deleted before it is written.
    pub whole: Option<&'p Path>,
}

/// Saves the engine's weights and moments, the files of the model folder and `state`, with its files and checksum
/// filled in, to a run's folder; then points the folder's `model` link to it and deletes the run's older checkpoints
/// beyond those to keep.
/// Errors: `Checkpoint` if the disk refuses, or a tensor is not finite; `Device` if a tensor can't be read. Older
/// checkpoints are then untouched.
pub fn save(
    engine: &mut Engine,
    folder: &RunFolder,
    model: &ModelFolder,
    state: RunState,
    keep: Keep<'_>,
) -> Result<Saved, TrainError> {
    engine.finish_update()?;
    let engine = &*engine;
    let (disk, checkpoints) = (folder.disk(), folder.checkpoints());
    let name = name_of(state.step);
    let temporary = checkpoints.join(format!("{UNFINISHED}{name}"));
    let path = checkpoints.join(&name);
    let step = state.step;
    let unread = OnceCell::new();
    make_room(disk, &checkpoints, step, room(engine, model), keep);
    let saved = write_files((engine, &unread), disk, &temporary, model, state).and_then(|bytes| {
        let replaced = replace(disk, &temporary, &path)?;
        disk.sync_folder(&checkpoints)?;
        Ok((Saved { path: path.clone(), bytes }, replaced))
    });
    match saved {
        Ok((saved, replaced)) => {
            // If it can't be deleted now, the sweep at the next start deletes it.
            let _ = disk.remove_if_there(&replaced);
            // Replaces the link before its old checkpoint is deleted.
            link(disk, &folder.newest(), &path_inside(&name));
            delete_old(disk, &checkpoints, step, keep.most);
            Ok(saved)
        }
        Err(source) => {
            // The partial checkpoint is useless; if this fails too, the next checkpoint retries.
            let _ = disk.remove_if_there(&temporary);
            Err(unread.into_inner().unwrap_or_else(|| CheckpointError::Io { path, source }.into()))
        }
    }
}

/// Points the link of a run's folder to a checkpoint. If that fails, as on systems without links, deletes the link: it must
/// not lead to older weights.
fn link(disk: &Disk, link: &Path, target: &Path) {
    if disk.replace_link(link, target).is_err() && fs::read_link(link).is_ok_and(|found| found != target) {
        let _ = disk.remove_if_there(link);
    }
}

/// Makes a complete checkpoint durable that another process wrote, perhaps without syncing it. Errors: `Io`.
pub fn settle(disk: &Disk, checkpoint: &Path, state: &RunState) -> Result<(), CheckpointError> {
    let sync = || {
        let files = state.files.iter().map(|file| file.name.as_str()).chain([STATE_FILE]);
        files.map(|name| checkpoint.join(name)).try_for_each(|file| disk.sync_file(&file))?;
        disk.sync_folder(checkpoint)?;
        checkpoint.parent().map_or(Ok(()), |folder| disk.sync_folder(folder))
    };
    sync().map_err(|source| CheckpointError::Io { path: checkpoint.to_owned(), source })
}

/// A checkpoint's path relative to the run's folder.
fn path_inside(name: &str) -> PathBuf {
    Path::new(CHECKPOINTS).join(name)
}

/// Prefix of the folder of a checkpoint that is being written, or about to be deleted.
const UNFINISHED: &str = ".writing-";

/// Deletes the leftovers of killed saves. The caller holds the run's lock, so no process is writing there. Leftovers
/// that can't be deleted are harmless.
pub fn sweep(folder: &RunFolder) {
    let entries = fs::read_dir(folder.checkpoints()).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| is_unfinished(&entry.file_name().to_string_lossy())) {
        let _ = folder.disk().remove_if_there(&entry.path());
    }
}

/// Whether a checkpoint is or was being written under this name.
fn is_unfinished(name: &str) -> bool {
    let step = name.strip_prefix(UNFINISHED).map(|rest| rest.strip_suffix(OLD).unwrap_or(rest));
    step.and_then(step_of).is_some()
}

/// An engine, and the slot for the error of a tensor that can't be saved.
type Source<'e> = (&'e Engine, &'e OnceCell<TrainError>);

fn write_files(
    from: Source<'_>,
    disk: &Disk,
    folder: &Path,
    model: &ModelFolder,
    mut state: RunState,
) -> io::Result<u64> {
    disk.remove_if_there(folder)?;
    disk.create_folder(folder)?;
    disk.write_new(&folder.join(CONFIG_FILE), model.config_json.as_bytes())?;
    if let Some(adapters) = &model.adapter_json {
        disk.write_new(&folder.join(ADAPTER_CONFIG_FILE), adapters.as_bytes())?;
    }
    for file in &model.files {
        let path = folder.join(file.name);
        disk.create_with(&path, |path| file.write(File::create_new(path)?))?;
        disk.sync_file(&path)?;
    }
    let contents = contents(from.0);
    for (name, tensors) in &contents {
        let path = folder.join(name);
        disk.create_with(&path, |path| write_tensors(from, tensors, path))?;
        disk.sync_file(&path)?;
    }
    let names = contents.iter().map(|(name, _)| *name).chain([CONFIG_FILE]);
    let names = names.chain(model.adapter_json.as_ref().map(|_| ADAPTER_CONFIG_FILE));
    let names = names.chain(model.files.iter().map(|file| file.name));
    state.files = names.map(|name| sum_of(folder, name)).collect::<io::Result<_>>()?;
    let own = state.to_json();
    disk.write_new(&folder.join(STATE_FILE), own.as_bytes())?;
    disk.sync_folder(folder)?;
    Ok(state.files.iter().map(|f| f.bytes).sum::<u64>() + own.len() as u64)
}

fn write_tensors((engine, unread): Source<'_>, contents: &[Content], path: &Path) -> io::Result<()> {
    tensors::write(engine, contents, path).unwrap_or_else(|error| {
        let _ = unread.set(error);
        Err(io::Error::other("a tensor can't be saved"))
    })
}

fn sum_of(folder: &Path, name: &str) -> io::Result<FileSum> {
    let file = File::open(folder.join(name))?;
    let (bytes, blake3) = (file.metadata()?.len(), sum(&file)?.to_hex().to_string());
    Ok(FileSum { name: name.to_owned(), bytes, blake3 })
}

/// Suffix of a folder that is about to be deleted.
const OLD: &str = ".old";

/// Moves the new folder to its place, after renaming an old one of the same step, and returns the old one's new path. A
/// kill between the two renames leaves this step without a checkpoint, and older ones unchanged.
fn replace(disk: &Disk, temporary: &Path, path: &Path) -> io::Result<PathBuf> {
    let mut old = temporary.as_os_str().to_owned();
    old.push(OLD);
    let old = PathBuf::from(old);
    if is_there(path)? {
        disk.remove_if_there(&old)?;
        disk.rename(path, &old)?;
    }
    disk.rename(temporary, path)?;
    Ok(old)
}

/// Deletes all but the newest `keep` checkpoints of this run (at least one) up to that of `saved_step`. Checkpoints of
/// later steps neither count nor are deleted: a run resumed from an older checkpoint finds them damaged or reaches
/// their steps again. The same holds for abandoned branches. Best effort: a folder that can't be deleted is retried
/// after the next checkpoint.
fn delete_old(disk: &Disk, checkpoints: &Path, saved_step: u64, keep: usize) {
    for path in ours(checkpoints, saved_step).into_iter().skip(keep.max(1)) {
        let _ = disk.remove_if_there(&path);
    }
}

/// The checkpoints of this run up to a step, newest first; empty if the branches can't be read.
fn ours(checkpoints: &Path, up_to: u64) -> Vec<PathBuf> {
    let (Ok(branches), Ok(found)) = (Branches::read(checkpoints), list(checkpoints)) else { return vec![] };
    let lineage = branches.lineage();
    let is_ours = |path: &Path| own_state(path).map_or(true, |state| lineage.has(state.branch, state.step));
    let up_to_it = found.into_iter().filter(|(step, path)| *step <= up_to && is_ours(path));
    up_to_it.map(|(_, path)| path).collect()
}

/// Deletes older checkpoints of this run, oldest first, until the disk has room for another. Never deletes the one
/// known to be complete. Deletes nothing without one, or if the system does not report the free space.
fn make_room(disk: &Disk, checkpoints: &Path, step: u64, needed: Bytes, keep: Keep<'_>) {
    let Some(whole) = keep.whole else { return };
    let mut older = ours(checkpoints, step);
    older.retain(|path| path != whole);
    while free_space(checkpoints).is_ok_and(|free| free < needed)
        && let Some(oldest) = older.pop()
    {
        let _ = disk.remove_if_there(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_are_swept() {
        for name in [".writing-step-000001", ".writing-step-1000000", ".writing-step-000012.old"] {
            assert!(is_unfinished(name), "{name}");
        }
        for name in
            ["step-000001", ".writing-", ".writing-notes", ".writing-step-1", ".writing-step-000001.bak", "a.old"]
        {
            assert!(!is_unfinished(name), "{name}");
        }
    }
}
