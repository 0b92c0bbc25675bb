//! `plimsoll train --detach`: the same run in the background. Its output is in `train.log` of its folder.
//! Not here: starting a process in the background (`cli/detach.rs`).

use crate::cli::Failure;
use crate::cli::detach::{self, same_command, say_running};
use crate::cli::failure::{exit_code, io_failure};
use crate::cli::supervise::entry_of;
use crate::streams::write_data;
use std::fs;
use std::path::Path;

const LOG: &str = "train.log";

/// Starts this process's command in the background and shows the run's output until it has started. Returns the exit
/// code: the run's own if it ended before that.
/// Errors: the log can't be written; the process can't be started.
pub(super) fn start(runs: &Path) -> Result<u8, Failure> {
    fs::create_dir_all(runs).map_err(io_failure(runs.display()))?;
    // The run's folder has no name yet; a log in the folder of all runs can be moved there later.
    let log = runs.join(format!(".detached-{}.log", std::process::id()));
    let since_s = plimsoll_telemetry::now_s();
    let started = detach::start(same_command(), &log, None, |pid, lines| {
        detach::show(lines);
        entry_of(runs, pid, since_s)
    })?;
    let Some(entry) = started.found else {
        fs::remove_file(&log).map_err(io_failure(log.display()))?;
        return Ok(started.code.unwrap_or(exit_code::DEVICE_FAILED));
    };
    // In a resumed run's folder, this replaces the last session's log.
    fs::rename(&log, entry.folder.join(LOG)).map_err(io_failure(log.display()))?;
    if started.code.is_none() {
        say_running(&entry.name());
    }
    write_data(entry.name())?;
    // A short run may have ended already.
    Ok(started.code.unwrap_or(exit_code::DONE))
}
