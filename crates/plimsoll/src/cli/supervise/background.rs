//! Supervisors in the background, for new runs and for runs that lost their own.
//! Not here: starting a process in the background (`cli/detach.rs`).

use super::untrusted;
use crate::cli::Failure;
use crate::cli::detach::{self, own_command, say_running};
use crate::cli::failure::exit_code;
use crate::streams::write_data;
use plimsoll_files::TRUSTED_FOLDERS;
use plimsoll_registry::{Entry, Process, RunState, Surroundings};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

/// A supervisor that still runs after this time has begun; a full disk can keep it from recording that.
const PATIENCE: Duration = Duration::from_secs(20);

/// The file for the messages of a supervisor in the background.
const LOG: &str = "supervisor.log";

/// Starts the command of this process's own arguments in the background. Returns the exit code.
pub(super) fn start(folder: &Path) -> Result<u8, Failure> {
    let arguments = std::env::args_os().skip(2).collect();
    if let Some(code) = begin(folder, arguments, None)? {
        return Ok(code);
    }
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    say_running(&name);
    write_data(name)?;
    Ok(exit_code::DONE)
}

/// Starts a new supervisor for a run in the background, with the folder and the variables of the first one, as far as
/// its programs' keepers still have them. It does no harm if another process starts one first.
/// Errors: another user controls the run's files, so what they say is not run; the supervisor can't be started.
pub(super) fn adopt(entry: &Entry) -> Result<(), Failure> {
    let entry = entry.trusted().map_err(|error| untrusted(&entry.name(), &error))?;
    let arguments = vec!["--adopt".into(), entry.folder.clone().into_os_string()];
    begin(&entry.folder, arguments, entry.surroundings())?;
    Ok(())
}

/// Starts a supervisor in a folder. Returns once it supervises, or the exit code if it ended before that.
fn begin(folder: &Path, arguments: Vec<OsString>, surroundings: Option<Surroundings>) -> Result<Option<u8>, Failure> {
    let mut command = own_command();
    if let Some(Surroundings { folder, variables }) = surroundings {
        command.current_dir(folder).env_clear().envs(variables);
        // The trusted folders come from the user of this command, not from the first supervisor's variables.
        command.envs(std::env::var_os(TRUSTED_FOLDERS).map(|folders| (TRUSTED_FOLDERS, folders)));
    }
    command.args(["run".into(), "--inside".into(), folder.as_os_str().to_owned()]).args(arguments);
    let has_started = |entry: &Entry| entry.workers.iter().any(|worker| worker.leader.is_some());
    let supervises = |entry: &Entry| has_started(entry) || entry.ended.is_some();
    let mut said = String::new();
    let started = detach::start(command, &folder.join(LOG), Some(PATIENCE), |pid, lines| {
        said.push_str(lines);
        Entry::read(folder).ok().filter(|entry| entry.process.pid == pid && supervises(entry))
    })?;
    match started.code.filter(|_| started.found.is_none()) {
        None => Ok(None),
        Some(code) => {
            detach::show(&said);
            Ok(Some(code))
        }
    }
}

/// Starts a supervisor for a run that lost its own. Returns the updated entry. Errors: as [`adopt`].
pub(super) fn adopted(entry: Entry) -> Result<Entry, Failure> {
    if entry.state() != RunState::Orphaned {
        return Ok(entry);
    }
    adopt(&entry)?;
    Ok(Entry::read(&entry.folder).unwrap_or(entry))
}

/// Whether a run's supervisor is this process.
pub(super) fn is_own(entry: &Entry) -> bool {
    entry.process == Process::own()
}
