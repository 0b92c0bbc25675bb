//! `plimsoll train --detach`: the same run in the background. Its output is in `train.log` of its folder.

use crate::cli::Failure;
use crate::cli::failure::{exit_code, io_failure};
use crate::cli::supervise::{entry_of, own_program};
use crate::streams::{talk, write_data};
use plimsoll_registry::Follower;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// How often the parent checks whether the run has started.
const TICK: Duration = Duration::from_millis(20);

const LOG: &str = "train.log";

/// Starts this process's command without `--detach` in its own process group, so that closing the terminal does not end
/// it. Forwards the run's output until it has started, and returns the exit code: the run's own if it ended before
/// that.
/// Errors: the log can't be written; the process can't be started.
pub(super) fn start(runs: &Path) -> Result<u8, Failure> {
    fs::create_dir_all(runs).map_err(io_failure(runs.display()))?;
    // The run's folder has no name yet; a log in the folder of all runs can be moved there later.
    let path = runs.join(format!(".detached-{}.log", std::process::id()));
    let log = plimsoll_files::open_own(&path).map_err(io_failure(path.display()))?;
    let mut command = Command::new(own_program());
    command.args(std::env::args_os().skip(1).filter(|word| word != "--detach"));
    let errors = log.try_clone().map_err(io_failure(path.display()))?;
    command.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
    let since_s = plimsoll_telemetry::now_s();
    let mut child = command.spawn().map_err(io_failure("can't start a process"))?;
    let mut printed = Follower::new(&path, u64::MAX).map_err(io_failure(path.display()))?;
    let mut line = Vec::new();
    loop {
        // Check both before reading the log, so that the read covers everything printed before.
        let ended = child.try_wait().map_err(io_failure("waiting for the run failed"))?;
        let entry = entry_of(runs, child.id(), since_s);
        pass_on(&mut printed, &mut line).map_err(io_failure(path.display()))?;
        if let Some(entry) = &entry {
            // In a resumed run's folder, this replaces the last session's log.
            fs::rename(&path, entry.folder.join(LOG)).map_err(io_failure(path.display()))?;
            let name = entry.name();
            if ended.is_none() {
                talk(format_args!(
                    "{name} runs in the background; `plimsoll logs -f {name}` follows it, `plimsoll stop {name}` stops it"
                ));
            }
            write_data(name)?;
        } else if ended.is_some() {
            // A killed run may leave an unfinished line.
            if !line.is_empty() {
                talk(String::from_utf8_lossy(&line));
            }
            fs::remove_file(&path).map_err(io_failure(path.display()))?;
        }
        match ended {
            // A short run may have ended already.
            Some(status) => return Ok(status.code().map_or(exit_code::DEVICE_FAILED, |code| code.to_le_bytes()[0])),
            None if entry.is_some() => return Ok(exit_code::DONE),
            None => {}
        }
        std::thread::sleep(TICK);
    }
}

/// Prints new lines of the log. `line`: the start of an unfinished line.
fn pass_on(printed: &mut Follower, line: &mut Vec<u8>) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    while let count @ 1.. = printed.read(&mut buffer)? {
        line.extend(&buffer[..count]);
        if let Some(end) = line.iter().rposition(|&byte| byte == b'\n') {
            talk(String::from_utf8_lossy(&line[..end]));
            line.drain(..=end);
        }
    }
    Ok(())
}
