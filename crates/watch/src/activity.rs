//! Finds out whether a process is working on a run, and which one. Process records have priority over locks: testing a
//! lock takes it for a moment, during which the run could not start.

use crate::process::owner;
use plimsoll_files::is_locked;
#[cfg(unix)]
use plimsoll_registry::{Entry, RunKind, RunState};
use std::path::Path;

/// The processes of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    /// Whether any process is running.
    pub is_running: bool,
    /// The training process, or the keeper of the training processes.
    pub process: Option<u32>,
    /// User ID of that process.
    pub uid: Option<u32>,
    /// All known processes of the run.
    pub processes: Vec<u32>,
}

/// Finds the processes of the run in a folder.
pub(crate) fn activity(folder: &Path) -> Activity {
    #[cfg(unix)]
    if let Some(activity) = of_entry(folder) {
        return Activity { uid: activity.process.and_then(owner), ..activity };
    }
    Activity { is_running: is_locked(folder), ..Activity::default() }
}

/// The processes of a run; `None` without a process record, or if it was written on another machine.
#[cfg(unix)]
fn of_entry(folder: &Path) -> Option<Activity> {
    let entry = Entry::read(folder).ok()?;
    let is_running = match entry.state() {
        RunState::Running | RunState::Orphaned => true,
        RunState::Ended | RunState::Gone => false,
        RunState::Elsewhere => return None,
    };
    Some(match entry.kind {
        _ if !is_running => Activity::default(),
        RunKind::Own => {
            let process = entry.process.pid;
            Activity { is_running, process: Some(process), processes: vec![process], uid: None }
        }
        RunKind::Supervised => {
            Activity { is_running, process: Some(entry.process.pid), processes: entry.survivors(), uid: None }
        }
    })
}
