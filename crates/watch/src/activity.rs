//! Finds out whether a process is working on a run, and which one. Process records have priority over locks: testing a
//! lock takes it for a moment, during which the run could not start.

use crate::process::owner;
use plimsoll_files::is_locked;
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
    if let Some(activity) = crate::supervised::activity(folder) {
        return Activity { uid: activity.process.and_then(owner), ..activity };
    }
    Activity { is_running: is_locked(folder), ..Activity::default() }
}
