//! The folders in which views look for runs, and the run of a name.

use super::Failure;
use clap::Args;
use plimsoll_files::is_folder;
use plimsoll_watch::{Places, Runs};
use std::path::{Path, PathBuf};

/// The flag for the folder of runs.
#[derive(Debug, Clone, Args)]
pub(super) struct PlacesArgs {
    /// Folder of runs; registered runs in other folders are found too
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs_dir: PathBuf,
}

impl PlacesArgs {
    pub(super) fn places(&self) -> Places {
        Places { roots: vec![self.runs_dir.clone()], state: state() }
    }
}

#[cfg(unix)]
fn state() -> Option<PathBuf> {
    super::supervise::names_folder()
}

#[cfg(not(unix))]
fn state() -> Option<PathBuf> {
    None
}

/// The folder of a run, given by its path or its name. Errors: no run or several runs have the name.
pub(super) fn run_folder(name: &str, places: &Places) -> Result<PathBuf, Failure> {
    let path = Path::new(name);
    if is_folder(path).unwrap_or(false) {
        return Ok(path.to_owned());
    }
    let mut named = Runs::discover(places).found.into_iter().filter(|run| run.name == name);
    match (named.next(), named.next()) {
        (Some(run), None) => Ok(run.folder),
        (Some(first), Some(second)) => {
            let folders = format!("{} and {}", first.folder.display(), second.folder.display());
            Err(Failure::bad_input(format!("several runs are called `{name}`: {folders}"))
                .hint("give the folder instead"))
        }
        (None, _) => {
            let failure = Failure::bad_input(format!("there is no run `{name}`"));
            Err(failure
                .hint("give the folder of a run, or the name of a run in `runs`; `plimsoll ps --all` lists runs"))
        }
    }
}
