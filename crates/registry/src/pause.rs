//! Pauses a supervised run from outside, as Ctrl-Z does, and resumes it. It keeps its memory, including GPU memory.
//! Not here: runs of `plimsoll train`, which pause between micro-batches on an order (`plimsoll-orders`).

use crate::entry::{Entry, RunKind, RunState};
use crate::processes::{Process, row};
use rustix::process::Signal;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// Why a run was not paused or resumed.
#[derive(Debug, thiserror::Error)]
pub enum PauseError {
    /// None of its processes run.
    #[error("it is not running")]
    HasEnded,
    /// It runs on another machine.
    #[error("it runs on another machine")]
    Elsewhere,
    /// It is already paused.
    #[error("it is already paused")]
    Already,
    /// It is not paused.
    #[error("it is not paused")]
    NotPaused,
    /// It is not supervised.
    #[error("it is not a supervised run")]
    NotSupervised,
    /// The process that its folder names is not proved to be the run's.
    #[error("process {pid} is not the run's: it does not have the run's lock open")]
    Unproved {
        /// The process.
        pid: u32,
    },
    /// Its folder is not trusted or can't be read.
    #[error(transparent)]
    Untrusted(#[from] io::Error),
}

/// Whether a supervised run is paused: its supervisor, or without one all of its processes, are stopped. Always false
/// on systems without `/proc`.
pub fn is_paused(entry: &Entry) -> bool {
    let is_stopped = |pid: u32| row(pid).is_some_and(|row| row.is_stopped);
    if entry.kind != RunKind::Supervised {
        return false;
    }
    match entry.process.is_alive() {
        true => is_stopped(entry.process.pid),
        false => Some(entry.survivors()).is_some_and(|pids| !pids.is_empty() && pids.into_iter().all(is_stopped)),
    }
}

/// Time that a supervisor may take to stop its programs and itself, and time between two looks at it.
const STOPS_WITHIN: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Stops all processes of a supervised run until it is resumed, and waits until they are stopped. Errors: it does not run here, or is already paused.
pub fn pause(entry: &Entry) -> Result<(), PauseError> {
    let entry = &checked(entry)?;
    if is_paused(entry) {
        return Err(PauseError::Already);
    }
    // The supervisor stops its programs before itself, so that it does not mistake them for hung ones.
    send(entry, [Signal::TSTP, Signal::STOP]);
    // A `resume` right after this one must find it paused.
    let since = Instant::now();
    while !is_paused(entry) && since.elapsed() < STOPS_WITHIN {
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// Resumes a supervised run. Errors: it does not run here, or is not paused.
pub fn resume(entry: &Entry) -> Result<(), PauseError> {
    let entry = &checked(entry)?;
    if !is_paused(entry) {
        return Err(PauseError::NotPaused);
    }
    send(entry, [Signal::CONT; 2]);
    Ok(())
}

/// Reads the run again from trusted files. Errors: it can't be signaled.
fn checked(entry: &Entry) -> Result<Entry, PauseError> {
    let entry = entry.trusted()?;
    match entry.state() {
        _ if entry.kind != RunKind::Supervised => Err(PauseError::NotSupervised),
        RunState::Running if entry.proved().is_none() => Err(PauseError::Unproved { pid: entry.process.pid }),
        RunState::Running | RunState::Orphaned => Ok(entry),
        RunState::Ended | RunState::Gone => Err(PauseError::HasEnded),
        RunState::Elsewhere => Err(PauseError::Elsewhere),
    }
}

/// Sends the first signal to the supervisor or, if it is gone, the second one to each of its programs' processes.
fn send(entry: &Entry, [supervisor, program]: [Signal; 2]) {
    match entry.process.is_alive() {
        true => {
            if let Some(process) = entry.proved() {
                process.signal(supervisor);
            }
        }
        false => entry.survivors().into_iter().filter_map(Process::of).for_each(|process| process.signal(program)),
    }
}
