//! Where a run is between two steps, for a session and for the one that continues it with the same state in memory.

use crate::LossScale;
use crate::checkpoint::TrainingCounts;
use crate::step::Expected;
use crate::undo::Undo;
use std::path::PathBuf;
use std::time::Duration;

/// Where a run is between two steps, without its tensors.
#[derive(Debug)]
pub struct Position {
    /// Training time of the sessions before, without pauses.
    pub(crate) seconds_before: f64,
    /// The branch of the run.
    pub(crate) branch: u64,
    /// A checksum of the weights below the adapters.
    pub(crate) base: Option<String>,
    /// The last step.
    pub(crate) step: u64,
    /// Number of updates: steps minus skipped updates.
    pub(crate) updates: u64,
    pub(crate) loss_scale: Option<LossScale>,
    /// The newest complete checkpoint on disk, and its step.
    pub(crate) saved: Option<(u64, PathBuf)>,
    /// Why the last attempt to save failed; `None` if it succeeded.
    pub(crate) save_failure: Option<String>,
    /// When the last checkpoint of this session was complete.
    pub(crate) saved_at: Option<Duration>,
    /// Times measured in this session.
    pub(crate) expected: Expected,
    /// The step of the last evaluation.
    pub(crate) evaluated: Option<u64>,
    /// Counts of what the model has been trained on.
    pub(crate) seen: TrainingCounts,
    /// For plans that make some updates before all gradients are known.
    pub(crate) undo: Option<Undo>,
}
