//! Commands that supervise other training programs: `run`, `ps`, `logs`, `stop`, `attach`; and orders to runs: `pause`,
//! `resume`, `budget`.

mod attach;
mod background;
mod gpu_share;
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
use plimsoll_registry::{Entry, Registry, RunKind, Status};
use plimsoll_supervise::{Folder, FolderError, SuperviseError};
use plimsoll_telemetry::now_s;
use std::env;
use std::io;
use std::path::{Path, PathBuf};

/// The folder to search for runs.
#[derive(Debug, Clone, Args)]
pub(super) struct RunsArgs {
    /// Folder with the files of runs; runs in other folders are found by their names
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

/// The runs in a folder, and those that the user's state folder names. Empty if the folder does not exist.
fn registry(runs: &Path) -> Registry {
    Registry { state: names_folder(), runs: runs.to_owned() }
}

/// The run that process `pid` registered at `since_s` (Unix time) or later; `None` if there is none.
pub(super) fn entry_of(runs: &Path, pid: u32, since_s: f64) -> Option<Entry> {
    registry(runs).entries().into_iter().find(|entry| entry.process.pid == pid && entry.started_s >= since_s)
}

/// The user's folder with the names of runs; `None` if there is no state folder.
pub(super) fn names_folder() -> Option<PathBuf> {
    state_folder().map(|state| state.join("runs"))
}

/// Registers a run of `plimsoll train` while it lasts, so that `ps`, `logs`, `stop` and `attach` find it. If the entry
/// can't be written, they don't.
pub(super) struct OwnRun {
    entry: Entry,
}

impl OwnRun {
    /// Registers that this process trains in a folder.
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

    /// Records that the run ended with this exit code.
    pub(super) fn leave(mut self, code: u8) {
        let status = match code {
            0 => Status::Finished,
            130 => Status::Stopped,
            _ => Status::Failed,
        };
        self.entry.ended = Some(plimsoll_registry::Ended { status, code: Some(code.into()), time_s: now_s() });
        // The run has ended even if this write fails.
        let _ = self.entry.write();
    }
}

/// clap's error for `run`, with the hint that the command follows `--`.
pub(super) fn misplaced_command(error: clap::Error) -> Failure {
    use clap::error::ErrorKind::{MissingRequiredArgument, UnknownArgument};
    let is_misplaced = matches!(error.kind(), UnknownArgument | MissingRequiredArgument);
    let failure = Failure::usage(error);
    match is_misplaced {
        true => failure.hint("the command follows `--`: `plimsoll run -- python train.py`"),
        false => failure,
    }
}

/// The error for files of a run that are not trusted or can't be read. They decide which process is signaled and which
/// command runs.
fn untrusted(name: &str, error: &io::Error) -> Failure {
    let distrust = error.get_ref().and_then(|inner| inner.downcast_ref::<Distrust>());
    distrust.map_or_else(|| Failure::bad_input(format!("{name}: {error}")), |distrust| distrusted(name, distrust))
}

/// The error for files that another user controls. Plimsoll signals and runs nothing that they name.
fn distrusted(name: &str, distrust: &Distrust) -> Failure {
    Failure::bad_input(format!("{name} may belong to another user: {distrust}")).hint(trust_hint(distrust))
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
        Distrust::Unknown { .. } => "check that it still exists and is readable".to_owned(),
    }
}

/// The error for a live process that a run's folder names, without proof that it is the run.
fn unproved(entry: &Entry) -> Failure {
    let pid = entry.process.pid;
    let message = format!("process {pid} is not {}: it does not have the run's lock open", entry.name());
    Failure::bad_input(message).hint(format!("to end it anyway, run `kill {pid}`"))
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
                Self::bad_flag(message).hint("choose another `--name`, or omit it for an unused name")
            }
            FolderError::Locked(LockError::InUse { .. }) => {
                Self::bad_flag(message).hint("`plimsoll ps` shows it, `plimsoll attach` follows it")
            }
            FolderError::Distrusted(distrust) => {
                Self::bad_flag(format!("a run here could be replaced by another user: {message}"))
                    .hint(format!("{}; or choose another folder with `--runs-dir`", trust_hint(&distrust)))
            }
            FolderError::Locked(LockError::Io { .. }) | FolderError::Io { .. } => Self::device(message)
                .hint("check for a full disk or a read-only folder, or choose another folder with `--runs-dir`"),
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
