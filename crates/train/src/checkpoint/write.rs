//! Writing a checkpoint: into a temporary folder, each file synced and hashed, then renamed, then the parent synced.
//! Until the rename the older checkpoints are all there is, and they are only deleted after it.

use super::contents::{Content, contents};
use super::find::{list, name_of, own_state, step_of};
use super::hash::sum;
use super::size::room;
use super::{CONFIG_FILE, CheckpointError, FileSum, ModelFolder, STATE_FILE, State, tensors};
use crate::folder::CHECKPOINTS;
use crate::{Engine, RunFolder, TrainError};
use plimsoll_files::{Disk, free_space, is_there};
use plimsoll_telemetry::Branches;
use plimsoll_units::Bytes;
use std::cell::OnceCell;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// A checkpoint that is whole on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// Where.
    pub path: PathBuf,
    /// Size of all its files.
    pub bytes: u64,
}

/// Which checkpoints stay.
#[derive(Debug, Clone, Copy)]
pub struct Keep<'p> {
    /// The newest of the run, so many.
    pub most: usize,
    /// One that is whole, if there is one: the others that are older than the new one go before it is written where the
    /// disk has no room for it.
    pub whole: Option<&'p Path>,
}

/// Saves the engine's weights and moments, the files of the model's folder and `state`, whose files and checksum are filled
/// in, into a run's folder; then links the folder's `model` to it and deletes all but the newest of the run up to this one that are to be kept.
/// Errors: `Checkpoint`, where the disk refuses; `Device`, where a tensor can't be read. Older checkpoints are then
/// untouched.
pub fn save(
    engine: &Engine,
    folder: &RunFolder,
    model: &ModelFolder,
    state: State,
    keep: Keep<'_>,
) -> Result<Saved, TrainError> {
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
            // What can't be deleted now is swept when the run is started again.
            let _ = disk.remove_if_there(&replaced);
            // Before the checkpoint goes that it names now. Where the system has no links, the checkpoint is there without.
            let _ = disk.replace_link(&folder.newest(), &path_inside(&name));
            delete_old(disk, &checkpoints, step, keep.most);
            Ok(saved)
        }
        Err(source) => {
            // What was written is useless; if even this fails, the next checkpoint tries again.
            let _ = disk.remove_if_there(&temporary);
            Err(unread.into_inner().unwrap_or_else(|| CheckpointError::Io { path, source }.into()))
        }
    }
}

/// A checkpoint's path from the run's folder.
fn path_inside(name: &str) -> PathBuf {
    Path::new(CHECKPOINTS).join(name)
}

/// What the name of a checkpoint begins with while it is written, or about to be deleted.
const UNFINISHED: &str = ".writing-";

/// Deletes what saves that were killed left behind. Whoever calls this holds the run's lock, so nobody writes there now.
/// What can't be deleted does no harm.
pub fn sweep(folder: &RunFolder) {
    let entries = fs::read_dir(folder.checkpoints()).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| is_unfinished(&entry.file_name().to_string_lossy())) {
        let _ = folder.disk().remove_if_there(&entry.path());
    }
}

/// Whether a checkpoint is written under this name, or was.
fn is_unfinished(name: &str) -> bool {
    let step = name.strip_prefix(UNFINISHED).map(|rest| rest.strip_suffix(OLD).unwrap_or(rest));
    step.and_then(step_of).is_some()
}

/// An engine, and where it is said that a tensor of it can't be read.
type Source<'e> = (&'e Engine, &'e OnceCell<TrainError>);

fn write_files(from: Source<'_>, disk: &Disk, folder: &Path, model: &ModelFolder, mut state: State) -> io::Result<u64> {
    disk.remove_if_there(folder)?;
    disk.create_folder(folder)?;
    disk.write_new(&folder.join(CONFIG_FILE), model.config_json.as_bytes())?;
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
        Err(io::Error::other("a tensor can't be read"))
    })
}

fn sum_of(folder: &Path, name: &str) -> io::Result<FileSum> {
    let file = File::open(folder.join(name))?;
    let (bytes, blake3) = (file.metadata()?.len(), sum(&file)?.to_hex().to_string());
    Ok(FileSum { name: name.to_owned(), bytes, blake3 })
}

/// What a folder that is about to be deleted is called.
const OLD: &str = ".old";

/// Puts the new folder where an old one of the same step may lie, and returns what that one is called now. A kill between
/// the two renames leaves this step without a checkpoint, and the older ones as they were.
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

/// Deletes all but the newest `keep` checkpoints of this run (at least one) up to that of `saved_step`. Those of later
/// steps, which a run that was resumed from an older one finds damaged or comes to again, neither count nor go, and
/// neither do those of branches that were left behind. Nothing depends on it: a folder that can't be deleted is tried
/// again after the next checkpoint.
fn delete_old(disk: &Disk, checkpoints: &Path, saved_step: u64, keep: usize) {
    for path in ours(checkpoints, saved_step).into_iter().skip(keep.max(1)) {
        let _ = disk.remove_if_there(&path);
    }
}

/// The checkpoints of this run up to that of a step, the newest first; none where that can't be told.
fn ours(checkpoints: &Path, up_to: u64) -> Vec<PathBuf> {
    let (Ok(branches), Ok(found)) = (Branches::read(checkpoints), list(checkpoints)) else { return vec![] };
    let lineage = branches.lineage();
    let is_ours = |path: &Path| own_state(path).map_or(true, |state| lineage.has(state.branch, state.step));
    let up_to_it = found.into_iter().filter(|(step, path)| *step <= up_to && is_ours(path));
    up_to_it.map(|(_, path)| path).collect()
}

/// Deletes older checkpoints of this run, the oldest first, until the disk has room for another, but never the one that is
/// known to be whole; none where there is no such one, or where the system does not say what room there is.
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
    fn only_names_of_our_own_are_swept() {
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
