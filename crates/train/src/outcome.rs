//! How a session of a run ended. Not here: what is due at its end (`ending.rs`).

use crate::{FolderError, Position, Report};
use std::path::PathBuf;

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It completed all steps.
    Finished,
    /// It was interrupted.
    Interrupted,
    /// A card was too hot.
    TooHot,
    /// It restarts with another plan.
    Replanned,
    /// The loss or the gradient became NaN or infinite.
    Diverged,
}

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
