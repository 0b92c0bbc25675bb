//! Where views look for runs, and which run a name means.

use super::Failure;
use clap::Args;
use plimsoll_files::is_folder;
use plimsoll_watch::{Places, Runs};
use std::path::{Path, PathBuf};

/// Where runs are looked for.
#[derive(Debug, Clone, Args)]
pub(super) struct PlacesArgs {
    /// Folder in which runs keep their files; those that were started elsewhere are found as well
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

/// The folder of a run: a path to it, or its name. Errors: there is none, or several have the name.
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
            Err(Failure::bad_input(format!("several runs are called `{name}`: {folders}")).hint("name its folder"))
        }
        (None, _) => {
            let failure = Failure::bad_input(format!("there is no run `{name}`"));
            Err(failure.hint(
                "name the folder of a run, or a run in `runs`; `plimsoll ps --all` lists those that were started here",
            ))
        }
    }
}
