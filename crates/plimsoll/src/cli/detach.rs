//! Commands in the background: this program started again in its own session, with its output in a log. The parent
//! waits until the command has started, or shows its error and returns its exit code. All long commands use it.
//! Not here: how each command recognizes its start (`train/mod.rs`, `serve.rs`, `supervise/background.rs`).

use super::Failure;
use super::failure::{exit_code, io_failure};
use crate::streams::talk;
use clap::Args;
use plimsoll_registry::Follower;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How often the parent checks whether the command has started.
const TICK: Duration = Duration::from_millis(10);

const DETACH: &str = "--detach";
const DETACHED: &str = "--detached";

/// The flag that starts a command in the background.
#[derive(Debug, Clone, Args)]
pub(super) struct DetachArgs {
    /// Run in the background; stdout is the name of the run, or the link of `serve`
    #[arg(long)]
    pub(super) detach: bool,
    /// This process is in the background
    #[arg(long, hide = true)]
    pub(super) detached: bool,
}

impl DetachArgs {
    /// Whether to start this command in the background. A process that already is in the background leaves its
    /// terminal.
    pub(super) fn is_requested(&self) -> bool {
        if self.detached {
            leave_terminal();
        }
        self.detach && !self.detached
    }
}

/// The command of this process, to start in the background.
pub(super) fn same_command() -> Command {
    let mut command = own_command();
    let mut literal = false;
    command.args(std::env::args_os().skip(1).map(|word| {
        literal |= word == "--";
        if word == DETACH && !literal { OsString::from(DETACHED) } else { word }
    }));
    command
}

/// A command of this program, under the name with which this process was started.
pub(super) fn own_command() -> Command {
    let mut command = Command::new(own_program());
    command.arg0(std::env::args_os().next().as_deref().unwrap_or(OsStr::new("plimsoll")));
    command
}

/// The path of this program, also if another file replaced it after the start.
pub(super) fn own_program() -> PathBuf {
    match cfg!(target_os = "linux") {
        true => PathBuf::from("/proc/self/exe"),
        false => std::env::current_exe().unwrap_or_else(|_| PathBuf::from("plimsoll")),
    }
}

/// Moves this process into its own session, so that closing the terminal does not end it.
pub(super) fn leave_terminal() {
    // This fails only for a group leader, such as a process started from a shell, which has nothing more to leave.
    let _ = rustix::process::setsid();
}

/// How a start in the background went.
pub(super) struct Start<T> {
    /// What identifies the started command; `None` if it ended before it had started, or after the time limit.
    pub(super) found: Option<T>,
    /// The exit code, if the command has ended.
    pub(super) code: Option<u8>,
}

/// Starts a command in the background with its output in `log`, and waits until `look` recognizes that it has started,
/// until it ends, or until `limit`. `look` gets the process ID and the lines that the command has printed since the
/// last call.
/// Errors: the log can't be written; the process can't be started.
pub(super) fn start<T>(
    mut command: Command,
    log: &Path,
    limit: Option<Duration>,
    mut look: impl FnMut(u32, &str) -> Option<T>,
) -> Result<Start<T>, Failure> {
    let output = plimsoll_files::open_own(log).map_err(io_failure(log.display()))?;
    let errors = output.try_clone().map_err(io_failure(log.display()))?;
    // The log may have output of an earlier process.
    let mut printed = Printed { follower: Follower::new(log, 0).map_err(io_failure(log.display()))?, line: vec![] };
    command.stdin(Stdio::null()).stdout(output).stderr(errors);
    let mut child = command.spawn().map_err(io_failure("can't start a process"))?;
    let (pid, begun) = (child.id(), Instant::now());
    loop {
        let ended = child.try_wait().map_err(io_failure("waiting for the process failed"))?;
        let lines = printed.lines(ended.is_some()).map_err(io_failure(log.display()))?;
        let mut found = look(pid, &lines);
        if found.is_some() {
            // Lines may have been printed between the read and the start.
            let lines = printed.lines(ended.is_some()).map_err(io_failure(log.display()))?;
            found = look(pid, &lines).or(found);
        }
        if let Some(signal) = ended.and_then(|status| status.signal()) {
            talk(format_args!("signal {signal} ended the process in the background"));
        }
        // A process ended by a signal has no exit code of its own.
        let code = ended.map(|status| status.code().map_or(exit_code::DEVICE_FAILED, |code| code.to_le_bytes()[0]));
        let is_late = limit.is_some_and(|limit| begun.elapsed() > limit);
        if found.is_some() || code.is_some() || is_late {
            return Ok(Start { found, code });
        }
        std::thread::sleep(TICK);
    }
}

/// Shows the lines of a starting command.
pub(super) fn show(lines: &str) {
    if !lines.is_empty() {
        talk(lines);
    }
}

/// Says how to watch, follow and stop a run that is in the background.
pub(super) fn say_running(name: &str) {
    talk(format_args!(
        "{name} runs in the background; `plimsoll logs -f {name}` shows its output, `plimsoll attach {name}` follows it \
         to its end, `plimsoll stop {name}` stops it"
    ));
}

/// The output of a process, in complete lines.
struct Printed {
    follower: Follower,
    /// The start of an unfinished line.
    line: Vec<u8>,
}

impl Printed {
    /// The new lines, without the last line break. `is_over`: the output is complete, so that an unfinished line is
    /// included; a killed process may leave one.
    fn lines(&mut self, is_over: bool) -> std::io::Result<String> {
        let mut buffer = vec![0; 64 << 10];
        while let count @ 1.. = self.follower.read(&mut buffer)? {
            self.line.extend(&buffer[..count]);
        }
        let end = match self.line.iter().rposition(|&byte| byte == b'\n') {
            _ if is_over => self.line.len(),
            Some(end) => end + 1,
            None => 0,
        };
        let rest = self.line.split_off(end);
        let lines = std::mem::replace(&mut self.line, rest);
        Ok(String::from_utf8_lossy(lines.strip_suffix(b"\n").unwrap_or(&lines)).into_owned())
    }
}
