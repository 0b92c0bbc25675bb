//! What came of a run: `report.json`.

use crate::card_peaks::CardPeak;
use crate::output::Progress;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What came of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// All workers came to their end.
    Finished,
    /// A worker failed, and was not started again.
    Failed,
    /// Somebody stopped it.
    Stopped,
    /// A card was too hot for it.
    TooHot,
    /// Its time was over.
    TimeOver,
    /// Its processes are gone, and since their supervisor was replaced nobody knows how they ended.
    Unknown,
}

/// An attempt that ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptReport {
    /// Which worker's.
    pub worker: usize,
    /// Which of its attempts, from 1.
    pub attempt: u32,
    /// The exit code.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// What kind of end.
    pub kind: String,
    /// How long it ran.
    pub ran_s: f64,
    /// The furthest that its output told of.
    pub progress: Option<Progress>,
    /// What differs from the command that was given.
    pub notes: Vec<String>,
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Its name.
    pub name: String,
    /// The command as it was given.
    pub command: Vec<String>,
    /// What came of it.
    pub status: Status,
    /// The exit code; `None` if nobody knows.
    pub code: Option<i32>,
    /// How long it ran, pauses included.
    pub ran_s: f64,
    /// Workers that came to their end, and workers in all.
    pub workers_succeeded: usize,
    /// Workers in all.
    pub workers: usize,
    /// The part of the attempts that came to their end, of those that nobody stopped; `None` if there was none.
    pub success_rate: Option<f64>,
    /// Restarts.
    pub restarts: u32,
    /// How many attempts failed, by kind.
    pub failures: BTreeMap<String, u64>,
    /// The most memory that was used on each card that it could see.
    #[serde(default)]
    pub cards: Vec<CardPeak>,
    /// All attempts, in the order in which they ended.
    pub attempts: Vec<AttemptReport>,
}

impl Report {
    /// Counts what the attempts were.
    pub(crate) fn count(&mut self) {
        self.failures.clear();
        let (mut succeeded, mut failed) = (0_u64, 0_u64);
        for attempt in &self.attempts {
            match attempt.kind.as_str() {
                crate::SUCCESS => succeeded += 1,
                crate::STOPPED | crate::TOO_HOT => {}
                kind => {
                    failed += 1;
                    *self.failures.entry(kind.to_owned()).or_default() += 1;
                }
            }
        }
        self.success_rate = (succeeded + failed > 0).then(|| succeeded as f64 / (succeeded + failed) as f64);
    }
}
