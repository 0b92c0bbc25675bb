//! What has happened in a session, against which its events and its end are checked.

use plimsoll_units::Bytes;
use std::time::Duration;

/// What a sample showed the run.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    pub time: Duration,
    /// The card's temperature, if it told one.
    pub core_c: Option<f64>,
    /// The memory that the run could have.
    pub usable: Bytes,
}

/// What happened in the session that runs.
#[derive(Debug, Default, Clone)]
pub struct Facts {
    /// Errors of the disk that were given.
    pub disk_errors: u32,
    /// Of these, the ones of the journal.
    pub journal_errors: u32,
    /// A program of the card failed.
    pub card_failed: bool,
    /// A load was refused.
    pub refused_load: bool,
    /// The user asked for its end.
    pub stop_asked: bool,
    /// Samples, newest last.
    pub samples: Vec<Seen>,
    /// Times at which its memory watcher changed its plan or made it wait.
    pub changes: Vec<Duration>,
    /// Whether its sensor is not believed, by its events.
    pub is_distrusted: bool,
    /// Batches begun by the plan that is loaded.
    pub begun: u64,
    /// The last step of its events.
    pub step: Option<u64>,
    /// The bytes of its plan, and when that began.
    pub planned: Option<u64>,
    pub planned_at: Duration,
    /// Whether an order was refused, or a user gave the run another budget.
    pub is_refused: bool,
    pub is_paused: bool,
    /// Whether it reported events that its journal lost.
    pub told_losses: bool,
    pub has_waited: bool,
}
