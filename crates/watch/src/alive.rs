//! Whether somebody is at a run, and who. What a process wrote of itself counts before locks: asking for a lock takes it for
//! a moment, in which the run could not begin.

use crate::process::owner;
use plimsoll_files::{LOCK, open_inside};
use std::fs::TryLockError;
use std::path::Path;

/// Who is at a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Alive {
    /// Whether somebody is.
    pub is_running: bool,
    /// The process that trains, or that keeps those that do.
    pub process: Option<u32>,
    /// The user that it runs as, by number.
    pub uid: Option<u32>,
    /// All that are known.
    pub processes: Vec<u32>,
}

/// Who is at the run in a folder.
pub(crate) fn alive(folder: &Path) -> Alive {
    #[cfg(unix)]
    if let Some(alive) = crate::supervised::alive(folder) {
        return Alive { uid: alive.process.and_then(owner), ..alive };
    }
    Alive { is_running: is_locked(&folder.join(LOCK)), ..Alive::default() }
}

/// Whether a process holds a run's lock.
fn is_locked(lock: &Path) -> bool {
    open_inside(lock, 1).is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}
