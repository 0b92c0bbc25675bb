//! How a session of a run ended. Not here: what is due at its end (`ending.rs`), and why it may end (`pace.rs`).

use crate::{Ending, FolderError, Position, Report};
use std::path::PathBuf;

/// The outcome of a session.
#[derive(Debug)]
pub struct Outcome {
    /// Why it ended.
    pub ending: Ending,
    /// The contents of report.json, whether or not it could be written.
    pub report: Report,
    /// The newest complete checkpoint on disk, and its step.
    pub saved: Option<(u64, PathBuf)>,
    /// Where the run is, if the plan with which it restarts takes over the state on the device.
    pub position: Option<Position>,
    /// Why the state after the last step is not on disk; `None` if it is. A divergence requires no checkpoint.
    pub unsaved: Option<String>,
    /// Why report.json is not on disk; `None` if it is.
    pub unreported: Option<FolderError>,
}
