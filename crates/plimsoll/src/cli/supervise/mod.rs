//! Other programs that train, kept alive and found again: `run`, `ps`, `logs`, `stop`, `attach`; and what runs are asked to do:
//! `pause`, `resume`, `budget`.

mod attach;
mod detach;
mod heat;
mod logs;
mod order;
mod ps;
mod repair;
mod reporter;
mod run;
mod say;
mod stop;
mod visible;
mod watch;
mod workers;

pub(super) use attach::{AttachArgs, run as attach};
pub(super) use detach::own_program;
pub(super) use logs::{LogsArgs, run as logs};
pub(super) use order::{BudgetArgs, PauseArgs, run_budget as budget, run_pause as pause, run_resume as resume};
pub(super) use ps::{PsArgs, run as ps};
pub(super) use run::{RunArgs, run};
pub(super) use stop::{StopArgs, run as stop};

use super::Failure;
use super::failure::{THREAD_LIMITS, line};
use super::state::state_folder;
use crate::streams::talk;
use clap::Args;
use plimsoll_files::{Distrust, LockError, TRUSTED_FOLDERS, check_folder};
use plimsoll_supervise::{Entry, Folder, FolderError, Registry, RunKind, Status, SuperviseError};
use plimsoll_telemetry::now_s;
use std::env;
use std::io;
use std::path::{Path, PathBuf};

/// Where runs are looked for.
#[derive(Debug, Clone, Args)]
pub(super) struct RunsArgs {
    /// Folder in which runs keep their files; runs elsewhere are found by their names as well
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs_dir: PathBuf,
}

impl RunsArgs {
    fn registry(&self) -> Registry {
        registry(&self.runs_dir)
    }

    /// The run of this name. Errors: there is none.
    fn find(&self, name: &str) -> Result<Entry, Failure> {
        self.registry().find(name).ok_or_else(|| {
            Failure::bad_input(format!("there is no run `{name}`")).hint("`plimsoll ps --all` lists all runs")
        })
    }
}

/// The runs in a folder, and those that the user's state folder names. Nothing is there where nothing was run.
fn registry(runs: &Path) -> Registry {
    Registry { state: names_folder(), runs: runs.to_owned() }
}

/// The run that the process with this number entered at `since_s` (Unix time) or later; `None` if it has not.
pub(super) fn entry_of(runs: &Path, pid: u32, since_s: f64) -> Option<Entry> {
    registry(runs).entries().into_iter().find(|entry| entry.process.pid == pid && entry.started_s >= since_s)
}

/// The user's folder of names of runs; none where there is no place for one.
pub(super) fn names_folder() -> Option<PathBuf> {
    state_folder().map(|state| state.join("runs"))
}

/// Enters a run of our own while it lasts, so that `ps`, `logs`, `stop` and `attach` find it. Where that can't be written,
/// they don't.
pub(super) struct OwnRun {
    entry: Entry,
}

impl OwnRun {
    /// This process trains in a folder.
    pub(super) fn enter(folder: &Path, runs: &Path) -> Option<Self> {
        let folder = folder.canonicalize().ok()?;
        if let Err(distrust) = check_folder(&folder) {
            talk(format_args!("warning: {distrust}: `stop`, `pause` and `budget` will refuse this run"));
            talk(format_args!("hint: {}", trust_hint(&distrust)));
        }
        let command = env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        let entry = Entry::new(RunKind::Own, &folder, command);
        registry(runs).add(&entry).ok()?;
        Some(Self { entry })
    }

    /// It ended with this exit code.
    pub(super) fn leave(mut self, code: u8) {
        let status = match code {
            0 => Status::Finished,
            130 => Status::Stopped,
            _ => Status::Failed,
        };
        self.entry.ended = Some(plimsoll_supervise::Ended { status, code: Some(code.into()), time_s: now_s() });
        // The run has ended whether or not that can be written.
        let _ = self.entry.write();
    }
}

/// What clap refuses of `run`, with the hint that what is run stands behind `--`.
pub(super) fn misplaced_command(error: clap::Error) -> Failure {
    use clap::error::ErrorKind::{MissingRequiredArgument, UnknownArgument};
    let is_misplaced = matches!(error.kind(), UnknownArgument | MissingRequiredArgument);
    let failure = Failure::usage(error);
    match is_misplaced {
        true => failure.hint("the command stands behind `--`: `plimsoll run -- python train.py`"),
        false => failure,
    }
}

/// A run's files decide what is signaled or run, and they are not believed, or can't be read.
fn untrusted(name: &str, error: &io::Error) -> Failure {
    let distrust = error.get_ref().and_then(|inner| inner.downcast_ref::<Distrust>());
    distrust.map_or_else(|| Failure::bad_input(format!("{name}: {error}")), |distrust| distrusted(name, distrust))
}

/// Another user controls a run's files, so nothing that they say is signaled or run.
fn distrusted(name: &str, distrust: &Distrust) -> Failure {
    Failure::bad_input(format!("{name} may be another user's: {distrust}")).hint(trust_hint(distrust))
}

fn trust_hint(distrust: &Distrust) -> String {
    let path = distrust.path().display();
    match distrust {
        Distrust::Owner { uid, .. } => {
            format!("act as that user, or, if user {uid} may run commands as you, set `{TRUSTED_FOLDERS}={path}`")
        }
        Distrust::Writable { .. } => {
            format!("`chmod go-w {path}`; `chmod +t {path}` if it is a folder that users share")
        }
        Distrust::Unknown { .. } => "check that it is still there, and readable".to_owned(),
    }
}

/// The process that a run's folder names is alive, and nothing shows that it is the run.
fn unproved(entry: &Entry) -> Failure {
    let pid = entry.process.pid;
    let message = format!("process {pid} is not {}: it does not have the run's lock open", entry.name());
    Failure::bad_input(message).hint(format!("if it is to end all the same: `kill {pid}`"))
}

/// Opens the folder of a run.
fn open(folder: &Path) -> Result<Folder, Failure> {
    Ok(Folder::open(folder)?)
}

impl From<FolderError> for Failure {
    fn from(error: FolderError) -> Self {
        let message = line(&error);
        match error {
            FolderError::Exists { .. } => {
                Self::bad_flag(message).hint("choose another `--name`, or leave it out for one that is free")
            }
            FolderError::Locked(LockError::InUse { .. }) => {
                Self::bad_flag(message).hint("`plimsoll ps` shows it, `plimsoll attach` follows it")
            }
            FolderError::Distrusted(distrust) => {
                Self::bad_flag(format!("a run here could be replaced by another user: {message}"))
                    .hint(format!("{}; `--runs-dir` names another folder", trust_hint(&distrust)))
            }
            FolderError::Locked(LockError::Io { .. }) | FolderError::Io { .. } => {
                Self::device(message).hint("is the disk full, or the folder read-only? `--runs-dir` names another")
            }
        }
    }
}

impl From<SuperviseError> for Failure {
    fn from(error: SuperviseError) -> Self {
        let message = line(&error);
        match error {
            SuperviseError::Journal(error) => error.into(),
            SuperviseError::System { .. } => Self::device(message).hint(THREAD_LIMITS),
        }
    }
}
