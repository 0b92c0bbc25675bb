//! Which folder a run lives in, and what it goes on from.

use super::args::TrainArgs;
use crate::cli::Failure;
use crate::streams::talk;
use ::train::checkpoint::{self, newest_whole};
use ::train::{FolderError, RunFolder, Start};
use std::path::{Path, PathBuf};
use telemetry::{Event, Sink};

/// The settings of the run that `--resume` means, if there are any; they are laid under all others.
pub(in crate::cli) fn resumed_config(
    resume: &str,
    name: Option<&str>,
    runs_dir: &Path,
) -> Result<Option<PathBuf>, Failure> {
    let run = match (resume, name) {
        ("auto", Some(name)) => Some(runs_dir.join(name)),
        ("auto", None) => newest_run(runs_dir),
        (path, _) => Some(run_of(Path::new(path))?),
    };
    Ok(run.map(|run| run.join("config.yaml")).filter(|config| config.exists()))
}

/// The run whose checkpoint, or which itself, lies at `path`.
fn run_of(path: &Path) -> Result<PathBuf, Failure> {
    let candidates = [Some(path), path.parent().and_then(Path::parent)];
    let is_run = |run: &&Path| run.join("checkpoints").is_dir();
    candidates.into_iter().flatten().find(is_run).map(Path::to_owned).ok_or_else(|| {
        Failure::bad_input(format!("{} is neither a run nor a checkpoint of one", path.display()))
            .hint("`--init PATH` starts a new run from weights that lie elsewhere")
    })
}

/// The run that was written to last; one that was refused at its start wrote nothing.
fn newest_run(runs: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(runs).ok()?.flatten().map(|entry| entry.path());
    let written = |run: &PathBuf| {
        let journal = run.join("journal.jsonl").metadata().ok().filter(|journal| journal.len() > 0);
        journal.and_then(|journal| journal.modified().ok())
    };
    entries.filter_map(|run| Some((written(&run)?, run))).max().map(|(_, run)| run)
}

impl TrainArgs {
    /// The run's folder, and where its weights come from.
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
            None => newest_run(&self.runs_dir),
        };
        let folder = match run {
            Some(run) => RunFolder::open(&run, true)?,
            None => self.new_folder(model_name)?,
        };
        if let Some(newest) = self.newest_checkpoint(&folder)? {
            return Ok((folder, Start::Resume(newest)));
        }
        if !checkpoint::list(&folder.checkpoints()).is_empty() {
            let failure = Failure::from(checkpoint::CheckpointError::None { path: folder.path().to_owned() });
            return Err(failure.hint("what is damaged is kept; the weights of one may still do for `--init`"));
        }
        talk(format_args!("no checkpoint in {} yet; the run begins", folder.path().display()));
        let start = self.fresh()?;
        // What an earlier session left without reaching a checkpoint is no part of this run.
        let _ = std::fs::remove_file(folder.journal());
        Ok((folder, start))
    }

    /// The newest whole checkpoint; damaged ones are stepped over and named.
    fn newest_checkpoint(&self, folder: &RunFolder) -> Result<Option<PathBuf>, Failure> {
        let (newest, skipped) = newest_whole(&folder.checkpoints());
        let mut journal = telemetry::Journal::open(&folder.journal()).map_err(::train::TrainError::from)?;
        for skipped in skipped {
            talk(format_args!("warning: checkpoint {} is passed over: {}", skipped.path.display(), skipped.reason));
            journal.take(&Event::CheckpointSkipped { checkpoint: skipped.path, reason: skipped.reason });
        }
        Ok(newest.map(|(path, _)| path))
    }

    /// `runs/NAME`
    fn path_of(&self, name: &str) -> Result<PathBuf, Failure> {
        let plain = !name.is_empty() && Path::new(name).file_name() == Some(name.as_ref());
        if !plain {
            return Err(Failure::bad_flag(format!("`--name {name}` is not the name of a folder"))
                .hint("`--runs-dir` says where runs are kept"));
        }
        Ok(self.runs_dir.join(name))
    }

    /// `runs/NAME`; without a name, the model's and the first number that no run has.
    fn new_folder(&self, model_name: &str) -> Result<RunFolder, Failure> {
        if let Some(name) = &self.name {
            return Ok(RunFolder::open(&self.path_of(name)?, false)?);
        }
        let path = Path::new(model_name);
        let path = if path.file_name().is_some_and(|name| name == "config.json") { path.parent() } else { Some(path) };
        let base = path.and_then(Path::file_stem).map_or("run".into(), |stem| stem.to_string_lossy());
        let numbered = (1..).map(|n: u64| RunFolder::open(&self.runs_dir.join(format!("{base}-{n}")), false));
        let is_taken =
            |folder: &Result<_, _>| matches!(folder, Err(FolderError::Exists { .. } | FolderError::InUse { .. }));
        Ok(numbered.into_iter().find(|folder| !is_taken(folder)).expect("there is no end of numbers")?)
    }
}
