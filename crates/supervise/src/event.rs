//! What happens in a supervised run: the lines of its journal, from which everything that is said of it is made.

use crate::output::Progress;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Version of the schema below; raised when a field changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 1;

/// Something that happened, or that was decided. Units are in the names of the fields; workers are counted from 0,
/// attempts from 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The run begins.
    RunStarted {
        /// Its name.
        name: String,
        /// The command as it was given.
        command: Vec<String>,
        /// How many run it side by side.
        workers: usize,
    },
    /// An attempt was started.
    AttemptStarted {
        /// Which worker.
        worker: usize,
        /// Which attempt of it.
        attempt: u32,
        /// The number of its process, and of its process group.
        pid: u32,
        /// The command.
        command: Vec<String>,
        /// What differs from the command that was given.
        notes: Vec<String>,
        /// Variables that were set: `NAME=value`.
        environment: Vec<String>,
    },
    /// Processes that somebody else started are watched from here on.
    Adopted {
        /// Which worker's.
        worker: usize,
        /// The number of the process group.
        pid: u32,
        /// Whether its keeper answers, from which its end is learned.
        is_kept: bool,
        /// Whether its output could not be found, which is then neither kept nor shown.
        is_mute: bool,
    },
    /// An attempt could not be started.
    NotStarted {
        /// Which worker.
        worker: usize,
        /// Which attempt of it.
        attempt: u32,
        /// The program.
        program: String,
        /// What the system said.
        reason: String,
    },
    /// An attempt neither printed nor computed for too long.
    Hung {
        /// Which worker.
        worker: usize,
        /// For how long.
        idle_s: f64,
        /// Where its stacks are; none if they are to be had of Python's own fault handler alone, in the output.
        stacks: Option<PathBuf>,
    },
    /// A signal was sent by the supervisor's own decision.
    Signaled {
        /// Which worker.
        worker: usize,
        /// Its name: `SIGKILL`.
        signal: String,
        /// Why.
        why: String,
    },
    /// A signal that the supervisor got was passed on.
    Forwarded {
        /// Its name.
        signal: String,
    },
    /// An attempt ended.
    AttemptEnded {
        /// Which worker.
        worker: usize,
        /// Which attempt of it.
        attempt: u32,
        /// The exit code.
        code: Option<i32>,
        /// The signal that ended it.
        signal: Option<i32>,
        /// What kind of end.
        kind: String,
        /// What is the same for two ends of the same cause.
        cause: String,
        /// How long it ran.
        ran_s: f64,
        /// The furthest that its output told of.
        progress: Option<Progress>,
        /// Processes that the kernel ended for lack of memory in that time.
        oom_kills: u64,
    },
    /// It is started again.
    Restarting {
        /// Which worker.
        worker: usize,
        /// After this pause.
        pause_s: f64,
        /// Why.
        why: String,
        /// What differs from the command that was given.
        notes: Vec<String>,
    },
    /// It is not started again.
    GaveUp {
        /// Which worker.
        worker: usize,
        /// Why.
        why: String,
    },
    /// What became of a card's heat, or was done about it.
    Heat {
        /// The card's number and name.
        card: String,
        /// What happened, with figures.
        what: String,
    },
    /// Nobody says any more how hot cards are: half of the time is waited.
    SensorsSilent {},
    /// The time for the run is over.
    TimeOver {
        /// So long it was.
        duration_s: f64,
    },
    /// Journal, report or the run's entry can't be written.
    RecordsLost {
        /// What the system said.
        reason: String,
    },
    /// Some of the output is not kept.
    OutputLost {
        /// Which worker's.
        worker: usize,
        /// What the system said.
        reason: String,
    },
    /// Output is not passed on any more.
    ScreenGone {
        /// `stdout` or `stderr`.
        stream: String,
        /// What the system said.
        reason: String,
    },
    /// A reader had stopped reading, and reads again. What was printed meanwhile is in the log alone.
    NotShown {
        /// `stdout` or `stderr`.
        stream: String,
        /// Bytes that were not passed on.
        bytes: u64,
    },
    /// The run is over.
    RunEnded {
        /// What came of it.
        status: crate::report::Status,
        /// The exit code; `None` if nobody knows.
        code: Option<i32>,
    },
}

/// An event with its time, as the journal keeps it.
pub type Record = plimsoll_telemetry::Record<Event>;
