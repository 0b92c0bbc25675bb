//! The report of a run: `report.json`.

use crate::progress::Progress;
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Kind of end: success.
pub const SUCCESS: &str = "success";

/// Kind of end: a user or a signal stopped the run.
pub const STOPPED: &str = "stopped";

/// Kind of end: the supervisor stopped the run because a GPU was too hot.
pub const TOO_HOT: &str = "too_hot";

/// Kind of end: the exit code was lost.
pub const UNKNOWN: &str = "unknown";

/// Peak memory of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardPeak {
    /// `GPU-8932f937-d72c-4106-c12f-20bd9faed9f6`.
    pub uuid: String,
    /// The product name.
    pub name: String,
    /// Peak memory of all processes together.
    #[serde(rename = "peak_bytes")]
    pub peak: Bytes,
    /// Total memory.
    #[serde(rename = "total_bytes")]
    pub total: Option<Bytes>,
}

/// The status of a run that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// All workers succeeded.
    Finished,
    /// A worker failed and was not restarted.
    Failed,
    /// The user or a signal stopped it.
    Stopped,
    /// A GPU was too hot.
    TooHot,
    /// It reached its time limit.
    TimeOver,
    /// Its exit code was lost with its first supervisor and its keeper.
    Unknown,
}

/// An attempt that ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptReport {
    /// The worker.
    pub worker: usize,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The exit code.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The kind of end.
    pub kind: String,
    /// How long it ran.
    pub ran_s: f64,
    /// The furthest progress in its output.
    pub progress: Option<Progress>,
    /// Differences from the user's command.
    pub notes: Vec<String>,
}

/// The report of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Its name.
    pub name: String,
    /// The user's command.
    pub command: Vec<String>,
    /// Its status.
    pub status: Status,
    /// The exit code; `None` if it is unknown.
    pub code: Option<i32>,
    /// How long it ran, including pauses.
    pub ran_s: f64,
    /// Workers that succeeded.
    pub workers_succeeded: usize,
    /// All workers.
    pub workers: usize,
    /// The fraction of attempts that succeeded, not counting stopped ones; `None` if there were none.
    pub success_rate: Option<f64>,
    /// Number of restarts.
    pub restarts: u32,
    /// Number of failed attempts by kind.
    pub failures: BTreeMap<String, u64>,
    /// Peak memory of each visible GPU.
    #[serde(default)]
    pub cards: Vec<CardPeak>,
    /// All attempts in the order of their ends.
    pub attempts: Vec<AttemptReport>,
}

impl Report {
    /// Counts successes and failures of the attempts.
    pub fn count(&mut self) {
        self.failures.clear();
        let (mut succeeded, mut failed) = (0_u64, 0_u64);
        for attempt in &self.attempts {
            match attempt.kind.as_str() {
                SUCCESS => succeeded += 1,
                STOPPED | TOO_HOT => {}
                kind => {
                    failed += 1;
                    *self.failures.entry(kind.to_owned()).or_default() += 1;
                }
            }
        }
        self.success_rate = (succeeded + failed > 0).then(|| succeeded as f64 / (succeeded + failed) as f64);
    }
}
