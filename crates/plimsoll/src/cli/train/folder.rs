//! The folder of a run, and the checkpoint that it continues from.

use super::args::TrainArgs;
use crate::cli::Failure;
use crate::cli::failure::io_failure;
use crate::streams::talk;
use ::plimsoll_train::checkpoint::{self, newest_whole};
use ::plimsoll_train::{FolderError, RunFolder, Start};
use plimsoll_exec::cuda::ProductChoices;
use plimsoll_files::{LockError, is_file, is_folder, read_text_inside};
use plimsoll_telemetry::{Event, Sink};
use plimsoll_units::Bytes;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Some hundred bytes for each shape of a product, of which a run has tens.
const PRODUCTS_BYTES_MAX: Bytes = Bytes::mib(1);

/// The path of the settings of the run that `--resume` names, if any; all other settings override them.
/// Errors: a folder can't be read, or a path is not in a run.
pub(in crate::cli) fn resumed_config(
    resume: &str,
    name: Option<&str>,
    runs_dir: &Path,
) -> Result<Option<PathBuf>, Failure> {
    let run = match (resume, name) {
        ("auto", Some(name)) => Some(runs_dir.join(name)),
        ("auto", None) => newest_run(runs_dir)?,
        (path, _) => Some(run_of(Path::new(path))?),
    };
    let Some(config) = run.map(|run| run.join("config.yaml")) else { return Ok(None) };
    let is_there = is_file(&config).map_err(io_failure(config.display()))?;
    Ok(is_there.then_some(config))
}

/// Refuses another name or folder of runs than those of the run that `--resume PATH` continues.
/// Errors: the user gave one; the path can't be resolved, or is not in a run.
pub(in crate::cli) fn check_run_of_path(
    resume: &str,
    name: Option<&str>,
    runs_dir: Option<&Path>,
) -> Result<(), Failure> {
    let run = run_of(Path::new(resume))?;
    let whole = |path: &Path| path.canonicalize().map_err(io_failure(path.display()));
    let found = whole(&run)?;
    let is_named = |name: &str| [&found, &run].iter().any(|path| path.file_name() == Some(name.as_ref()));
    // The path may go through a symbolic link.
    let parent = run.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let parents = [found.parent().map(Path::to_owned), whole(parent).ok()];
    let is_in = |runs: &Path| whole(runs).is_ok_and(|runs| parents.contains(&Some(runs)));
    let other = match (name, runs_dir) {
        (Some(name), _) if !is_named(name) => format!("`--name` is {name}"),
        (_, Some(runs)) if !is_in(runs) => format!("`--runs-dir` is {}", runs.display()),
        _ => return Ok(()),
    };
    Err(Failure::bad_flag(format!("`--resume` continues {}, but {other}", run.display())).hint(
        "omit `--name` and `--runs-dir`, or start a new run from the checkpoint: `--init CHECKPOINT --name NAME`",
    ))
}

/// The run at `path`, or the run whose checkpoint is at `path`.
fn run_of(path: &Path) -> Result<PathBuf, Failure> {
    for run in [Some(path), path.parent().and_then(Path::parent)].into_iter().flatten() {
        let checkpoints = run.join("checkpoints");
        if is_folder(&checkpoints).map_err(io_failure(checkpoints.display()))? {
            return Ok(run.to_owned());
        }
    }
    Err(Failure::bad_input(format!("{} is neither a run nor a checkpoint of one", path.display()))
        .hint("`--init PATH` starts a new run from other weights"))
}

/// The run that was written to last; a run that was refused at its start wrote nothing. Errors: a folder can't be read.
pub(in crate::cli) fn newest_run(runs: &Path) -> Result<Option<PathBuf>, Failure> {
    let entries = match std::fs::read_dir(runs) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        entries => entries.map_err(io_failure(runs.display()))?,
    };
    let mut newest = None;
    for entry in entries {
        let run = entry.map_err(io_failure(runs.display()))?.path();
        let written = written(&run.join("journal.jsonl")).map_err(io_failure(run.display()))?;
        newest = newest.max(written.map(|time| (time, run)));
    }
    Ok(newest.map(|(_, run)| run))
}

/// The time of the last write to a journal; `None` if it does not exist or is empty.
fn written(journal: &Path) -> std::io::Result<Option<SystemTime>> {
    match is_file(journal)?.then(|| journal.metadata()).transpose()? {
        Some(found) if found.len() > 0 => found.modified().map(Some),
        _ => Ok(None),
    }
}

/// The algorithms of a library for the products of the run in a folder; `None` if it used no library. A file that can't
/// be used gives a warning, and algorithms are chosen again.
pub(super) fn kept_products(folder: &RunFolder) -> Option<ProductChoices> {
    let path = folder.products();
    let read = || -> Result<ProductChoices, String> {
        let text = read_text_inside(&path, 1, PRODUCTS_BYTES_MAX).map_err(|error| error.to_string())?;
        serde_json::from_str(&text).map_err(|error| format!("the file is damaged: {error}"))
    };
    if matches!(is_file(&path), Ok(false)) {
        return None;
    }
    let said =
        |why| talk(format_args!("warning: ignoring {}, so products may round differently: {why}", path.display()));
    read().map_err(said).ok()
}

impl TrainArgs {
    /// Opens the run's folder, and finds its start: weights or a checkpoint.
    pub(super) fn open_folder(&self, model_name: &str) -> Result<(RunFolder, Start), Failure> {
        let Some(resume) = &self.resume else {
            let start = self.fresh()?;
            return Ok((self.new_folder(model_name)?, start));
        };
        if resume != "auto" {
            let path = Path::new(resume);
            let run = run_of(path)?;
            let folder = RunFolder::open(&run, true)?;
            if path == run {
                let newest = self.newest_checkpoint(&folder)?.ok_or(checkpoint::CheckpointError::None { path: run })?;
                return Ok((folder, Start::Resume(newest)));
            }
            return Ok((folder, Start::Resume(path.to_owned())));
        }
        let run = match &self.name {
            Some(name) => Some(self.path_of(name)?),
            None => newest_run(&self.runs_dir)?,
        };
        let folder = match run {
            Some(run) => RunFolder::open(&run, true)?,
            None => self.new_folder(model_name)?,
        };
        if let Some(newest) = self.newest_checkpoint(&folder)? {
            if let Some(weights) = self.run.init.as_ref().filter(|_| self.request.adapters.base().is_none()) {
                talk(format_args!(
                    "note: the run continues from {}, so `--init {}` is not used",
                    newest.display(),
                    weights.display()
                ));
            }
            return Ok((folder, Start::Resume(newest)));
        }
        if !checkpoint::list(&folder.checkpoints())?.is_empty() {
            let failure = Failure::from(checkpoint::CheckpointError::None { path: folder.path().to_owned() });
            return Err(failure.hint("damaged checkpoints are not deleted; `--init` may still load the weights of one"));
        }
        // The journal of a session without a checkpoint stays; the run starts again in the same folder.
        talk(format_args!("no checkpoint in {} yet; starting the run", folder.path().display()));
        Ok((folder, self.fresh()?))
    }

    /// The newest complete checkpoint of the newest branch; damaged ones are skipped and named.
    fn newest_checkpoint(&self, folder: &RunFolder) -> Result<Option<PathBuf>, Failure> {
        let newest = newest_whole(&folder.checkpoints())?;
        if let Some(first) = newest.left_behind.first() {
            talk(format_args!(
                "{} is on an older branch; continuing the newest branch\nhint: `--resume {}` returns to it",
                names_of(&newest.left_behind),
                first.display()
            ));
        }
        if !newest.skipped.is_empty() {
            let journal = plimsoll_telemetry::Journal::open(folder.disk(), &folder.journal());
            let mut journal = journal.map_err(::plimsoll_train::TrainError::from)?;
            for skipped in newest.skipped {
                talk(format_args!("warning: skipping checkpoint {}: {}", skipped.path.display(), skipped.reason));
                journal.take(&Event::CheckpointSkipped { checkpoint: skipped.path, reason: skipped.reason });
            }
        }
        match (newest.found, newest.left_behind.is_empty()) {
            (Some((path, _)), _) => Ok(Some(path)),
            (None, true) => Ok(None),
            (None, false) => {
                let failure = Failure::from(checkpoint::CheckpointError::None { path: folder.path().to_owned() });
                Err(failure.hint(
                    "the newest branch has no usable checkpoint; to continue another branch, pass the path of its checkpoint to `--resume`",
                ))
            }
        }
    }

    /// `runs/NAME`
    fn path_of(&self, name: &str) -> Result<PathBuf, Failure> {
        let plain = !name.is_empty() && Path::new(name).file_name() == Some(name.as_ref());
        if !plain {
            return Err(Failure::bad_flag(format!("`--name {name}` is not a folder name"))
                .hint("use `--runs-dir` to choose where runs are kept"));
        }
        Ok(self.runs_dir.join(name))
    }

    /// `runs/NAME`; without a name, the model's name and the first unused number.
    fn new_folder(&self, model_name: &str) -> Result<RunFolder, Failure> {
        if let Some(name) = &self.name {
            return Ok(RunFolder::open(&self.path_of(name)?, false)?);
        }
        let path = Path::new(model_name);
        let path = if path.file_name().is_some_and(|name| name == "config.json") { path.parent() } else { Some(path) };
        let base = path.and_then(Path::file_stem).map_or("run".into(), |stem| stem.to_string_lossy());
        let numbered = (1..).map(|n: u64| RunFolder::open(&self.runs_dir.join(format!("{base}-{n}")), false));
        let is_taken = |folder: &Result<_, _>| {
            matches!(folder, Err(FolderError::Exists { .. } | FolderError::Locked(LockError::InUse { .. })))
        };
        Ok(numbered.into_iter().find(|folder| !is_taken(folder)).expect("there is no end of numbers")?)
    }
}

/// The names of some checkpoints, for messages.
fn names_of(paths: &[PathBuf]) -> String {
    let names = paths.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy().into_owned());
    names.collect::<Vec<_>>().join(", ")
}
