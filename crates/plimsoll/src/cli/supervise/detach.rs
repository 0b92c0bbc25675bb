//! Supervisors in the background: this program started again in its own session.

use super::untrusted;
use crate::cli::Failure;
use crate::cli::failure::io_failure;
use crate::streams::{talk, write_data};
use plimsoll_files::TRUSTED_FOLDERS;
use plimsoll_registry::{Entry, Process, RunState, Surroundings};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How often to check whether a supervisor has begun.
const TICK: Duration = Duration::from_millis(5);

/// A supervisor that still runs after this time has begun; a full disk can keep it from recording that.
const PATIENCE: Duration = Duration::from_secs(20);

/// The file for the messages of a supervisor in the background.
const LOG: &str = "supervisor.log";

/// More than a supervisor writes before it begins.
const LOG_BYTES: u64 = 64 << 10;

/// Starts the command of this process's own arguments in the background.
pub(super) fn start(folder: &Path) -> Result<u8, Failure> {
    let arguments = std::env::args_os().skip(2).collect();
    let Some(code) = begin(folder, arguments, None)? else {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        talk(format_args!(
            "{name} runs in the background; `plimsoll logs -f {name}` follows it, `plimsoll stop {name}` stops it"
        ));
        write_data(name)?;
        return Ok(0);
    };
    Ok(code)
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
    let path = folder.join(LOG);
    let mut said = plimsoll_files::open_own(&path).map_err(io_failure(path.display()))?;
    let already = said.metadata().map_or(0, |found| found.len());
    let stream = || -> Result<File, Failure> { said.try_clone().map_err(io_failure(path.display())) };
    let mut command = Command::new(own_program());
    if let Some(Surroundings { folder, variables }) = surroundings {
        command.current_dir(folder).env_clear().envs(variables);
        // The trusted folders come from the user of this command, not from the first supervisor's variables.
        command.envs(std::env::var_os(TRUSTED_FOLDERS).map(|folders| (TRUSTED_FOLDERS, folders)));
    }
    command.args(["run".into(), "--inside".into(), folder.as_os_str().to_owned()]).args(arguments);
    command.stdin(Stdio::null()).stdout(stream()?).stderr(stream()?);
    let mut child = command.spawn().map_err(io_failure("a supervisor can't be started"))?;
    let start = Instant::now();
    loop {
        let is_over = child.try_wait().map_err(io_failure("waiting for the supervisor failed"))?;
        let is_its = |entry: &Entry| entry.process.pid == child.id();
        let has_started = |entry: &Entry| entry.workers.iter().any(|worker| worker.leader.is_some());
        let has_begun = |entry: &Entry| has_started(entry) || entry.ended.is_some();
        if Entry::read(folder).is_ok_and(|entry| is_its(&entry) && has_begun(&entry)) {
            return Ok(None);
        }
        if let Some(status) = is_over {
            let mut words = String::new();
            let read =
                said.seek(SeekFrom::Start(already)).and_then(|_| said.take(LOG_BYTES).read_to_string(&mut words));
            talk(if read.is_ok() { words.trim_end() } else { "the supervisor ended" });
            return Ok(Some(status.code().map_or(1, |code| code.to_le_bytes()[0])));
        }
        if start.elapsed() > PATIENCE {
            return Ok(None);
        }
        std::thread::sleep(TICK);
    }
}

/// The path of this program, also if another file replaced it after the start.
pub(in crate::cli) fn own_program() -> PathBuf {
    match cfg!(target_os = "linux") {
        true => PathBuf::from("/proc/self/exe"),
        false => std::env::current_exe().unwrap_or_else(|_| PathBuf::from("plimsoll")),
    }
}

/// Detaches this process from its terminal.
pub(super) fn leave_terminal() {
    // This fails only for a group leader, such as a supervisor started from a shell, which has nothing more to leave.
    let _ = rustix::process::setsid();
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
