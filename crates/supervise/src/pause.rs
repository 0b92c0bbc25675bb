//! Pauses a supervised run from outside, as Ctrl-Z would, and lets it go on. Its memory stays where it is, a card's too.
//! Not here: runs of our own, which are paused between micro-batches by an order (`plimsoll-orders`).

use crate::processes::{Process, row};
use crate::registry::{Entry, Kind, State};
use crate::stop::signal_process;
use rustix::process::Signal;
use std::io;

/// Why a run was not paused, or isn't resumed.
#[derive(Debug, thiserror::Error)]
pub enum PauseError {
    /// Nothing of it runs.
    #[error("nothing of it runs")]
    HasEnded,
    /// It belongs to another machine.
    #[error("it belongs to another machine")]
    Elsewhere,
    /// It is paused already.
    #[error("it is paused already")]
    Already,
    /// It is not paused.
    #[error("it is not paused")]
    NotPaused,
    /// It is no program that a supervisor started.
    #[error("it is no supervised run")]
    NotSupervised,
    /// The process that its folder names is not proved to be the run's.
    #[error("process {pid} is not the run's: it does not have the run's lock open")]
    Unproved {
        /// The process.
        pid: u32,
    },
    /// What its folder says is not believed, or can't be read.
    #[error(transparent)]
    Untrusted(#[from] io::Error),
}

/// Whether a supervised run is paused: whoever is responsible for it is stopped. Always false where the system does not tell.
pub fn is_paused(entry: &Entry) -> bool {
    let is_stopped = |pid: u32| row(pid).is_some_and(|row| row.is_stopped);
    if entry.kind != Kind::Supervised {
        return false;
    }
    match entry.process.is_alive() {
        true => is_stopped(entry.process.pid),
        false => Some(entry.survivors()).is_some_and(|pids| !pids.is_empty() && pids.into_iter().all(is_stopped)),
    }
}

/// Stops all processes of a supervised run until it is let go on. Errors: it does not run here, or is paused already.
pub fn pause(entry: &Entry) -> Result<(), PauseError> {
    let entry = &checked(entry)?;
    if is_paused(entry) {
        return Err(PauseError::Already);
    }
    // The supervisor stops its programs before itself, so that it takes none for one that hangs.
    send(entry, [Signal::TSTP, Signal::STOP]);
    Ok(())
}

/// Lets a supervised run go on. Errors: it does not run here, or is not paused.
pub fn resume(entry: &Entry) -> Result<(), PauseError> {
    let entry = &checked(entry)?;
    if !is_paused(entry) {
        return Err(PauseError::NotPaused);
    }
    send(entry, [Signal::CONT; 2]);
    Ok(())
}

/// The run as files say that only this user can have written. Errors: it can't be signaled.
fn checked(entry: &Entry) -> Result<Entry, PauseError> {
    let entry = entry.trusted()?;
    match entry.state() {
        _ if entry.kind != Kind::Supervised => Err(PauseError::NotSupervised),
        State::Running if entry.proved().is_none() => Err(PauseError::Unproved { pid: entry.process.pid }),
        State::Running | State::Orphaned => Ok(entry),
        State::Ended | State::Gone => Err(PauseError::HasEnded),
        State::Elsewhere => Err(PauseError::Elsewhere),
    }
}

/// A signal for the supervisor, or one for each of its programs' processes where it is gone.
fn send(entry: &Entry, [supervisor, program]: [Signal; 2]) {
    match entry.process.is_alive() {
        true => {
            if let Some(process) = entry.proved() {
                signal_process(process, supervisor);
            }
        }
        false => {
            entry.survivors().into_iter().filter_map(Process::of).for_each(|process| signal_process(&process, program))
        }
    }
}
