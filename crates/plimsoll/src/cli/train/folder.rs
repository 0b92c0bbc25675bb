//! Which folder a run lives in, and what it goes on from.

use super::args::TrainArgs;
use crate::cli::Failure;
use ::train::checkpoint::{self, newest_whole};
use ::train::{RunFolder, Start};
use clap::ArgMatches;
use std::path::{Path, PathBuf};
use telemetry::{Event, Sink};

/// The settings of the run that is resumed, if one is; they are laid under all others.
pub(in crate::cli) fn resumed_config(given: &ArgMatches) -> Result<Option<PathBuf>, Failure> {
    let Some(resume) = given.get_one::<String>("resume") else { return Ok(None) };
    let runs = given.get_one::<PathBuf>("runs_dir").expect("the flag has a default");
    let run = match resume.as_str() {
        "auto" => match given.get_one::<String>("name") {
            Some(name) => Some(runs.join(name)),
            None => newest_run(runs),
        },
        path => Some(run_of(Path::new(path))?),
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

/// The run that was written to last.
fn newest_run(runs: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(runs).ok()?.flatten().map(|entry| entry.path());
    let written = |run: &PathBuf| run.join("journal.jsonl").metadata().and_then(|m| m.modified()).ok();
    entries.filter_map(|run| Some((written(&run)?, run))).max().map(|(_, run)| run)
}

impl TrainArgs {
    /// The run's folder, and where its weights come from.
    pub(super) fn open_folder(&self, model_name: &str) -> Result<(RunFolder, Start), Failure> {
        let fresh = || self.init.clone().map_or(Start::Fresh, Start::Weights);
        let open = |path: &Path, resume| RunFolder::open(path, resume).map_err(Failure::from);
        let Some(resume) = &self.resume else {
            return Ok((open(&self.run_path(model_name)?, false)?, fresh()));
        };
        if resume != "auto" {
            let path = Path::new(resume);
            let run = run_of(path)?;
            let folder = open(&run, true)?;
            if path == run {
                let newest = self.newest_checkpoint(&folder)?.ok_or(checkpoint::CheckpointError::None { path: run })?;
                return Ok((folder, Start::Resume(newest)));
            }
            return Ok((folder, Start::Resume(path.to_owned())));
        }
        let run = match &self.name {
            Some(_) => Some(self.run_path(model_name)?),
            None => newest_run(&self.runs_dir),
        };
        let path = match run {
            Some(path) => path,
            None => self.run_path(model_name)?,
        };
        let folder = open(&path, true)?;
        let start = match self.newest_checkpoint(&folder)? {
            Some(newest) => Start::Resume(newest),
            None => {
                eprintln!("no checkpoint in {} yet; the run begins", folder.path().display());
                // What an earlier session left without reaching a checkpoint is no part of this run.
                let _ = std::fs::remove_file(folder.journal());
                fresh()
            }
        };
        Ok((folder, start))
    }

    /// The newest whole checkpoint; damaged ones are stepped over and named.
    fn newest_checkpoint(&self, folder: &RunFolder) -> Result<Option<PathBuf>, Failure> {
        let (newest, skipped) = newest_whole(&folder.checkpoints());
        let mut journal = telemetry::Journal::open(&folder.journal()).map_err(::train::TrainError::from)?;
        for skipped in skipped {
            eprintln!("warning: checkpoint {} is passed over: {}", skipped.path.display(), skipped.reason);
            journal.take(&Event::CheckpointSkipped { checkpoint: skipped.path, reason: skipped.reason });
        }
        Ok(newest.map(|(path, _)| path))
    }

    /// `runs/NAME`; without a name, the model's and the first number that is free.
    fn run_path(&self, model_name: &str) -> Result<PathBuf, Failure> {
        if let Some(name) = &self.name {
            let plain = !name.is_empty() && Path::new(name).file_name() == Some(name.as_ref());
            if !plain {
                return Err(Failure::bad_flag(format!("`--name {name}` is not the name of a folder"))
                    .hint("`--runs-dir` says where runs are kept"));
            }
            return Ok(self.runs_dir.join(name));
        }
        let path = Path::new(model_name);
        let path = if path.file_name().is_some_and(|name| name == "config.json") { path.parent() } else { Some(path) };
        let base = path.and_then(Path::file_stem).map_or("run".into(), |stem| stem.to_string_lossy());
        let numbered = (1..).map(|n| self.runs_dir.join(format!("{base}-{n}")));
        Ok(numbered.into_iter().find(|path| !path.exists()).expect("there is no end of numbers"))
    }
}
