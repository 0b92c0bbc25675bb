//! Events of a supervised run: the lines of its journal, which is the source of all messages about it.

use crate::progress::Progress;
use crate::report::Status;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The journal's name. Not `journal.jsonl`, which marks a run of `plimsoll train`.
pub const JOURNAL: &str = "supervisor.jsonl";

/// Version of the schema below. Raised when a field changes its meaning or is removed.
pub const SCHEMA_VERSION: u32 = 1;

/// An event or a decision. Field names contain their units. Workers count from 0, attempts from 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum SupervisorEvent {
    /// The run started.
    RunStarted {
        /// Its name.
        name: String,
        /// The user's command.
        command: Vec<String>,
        /// The number of workers.
        workers: usize,
    },
    /// An attempt was started.
    AttemptStarted {
        /// The worker.
        worker: usize,
        /// The number of the attempt.
        attempt: u32,
        /// Its process ID and process group ID.
        pid: u32,
        /// The command.
        command: Vec<String>,
        /// Differences from the user's command.
        notes: Vec<String>,
        /// Environment variables that were set: `NAME=value`.
        environment: Vec<String>,
    },
    /// The supervisor took over processes of another supervisor.
    Adopted {
        /// The worker.
        worker: usize,
        /// The process group ID.
        pid: u32,
        /// Whether its keeper answers. Otherwise, its exit code may stay unknown.
        is_kept: bool,
        /// Whether its output is lost, because its pipes could not be opened.
        is_mute: bool,
    },
    /// An attempt could not be started.
    NotStarted {
        /// The worker.
        worker: usize,
        /// The number of the attempt.
        attempt: u32,
        /// The program.
        program: String,
        /// The system's error.
        reason: String,
    },
    /// An attempt neither printed nor computed for too long.
    Hung {
        /// The worker.
        worker: usize,
        /// For how long.
        idle_s: f64,
        /// The file with its stacks; `None` if only Python's fault handler can print them, to the output.
        stacks: Option<PathBuf>,
    },
    /// The supervisor decided to send a signal.
    Signaled {
        /// The worker.
        worker: usize,
        /// Its name: `SIGKILL`.
        signal: String,
        /// Why.
        why: String,
    },
    /// The supervisor forwarded a signal that it received.
    Forwarded {
        /// Its name.
        signal: String,
    },
    /// An attempt ended.
    AttemptEnded {
        /// The worker.
        worker: usize,
        /// The number of the attempt.
        attempt: u32,
        /// The exit code.
        code: Option<i32>,
        /// The signal that ended it.
        signal: Option<i32>,
        /// The kind of end.
        kind: String,
        /// Text that is equal for two ends with the same cause.
        cause: String,
        /// How long it ran.
        ran_s: f64,
        /// The furthest progress in its output.
        progress: Option<Progress>,
        /// Processes that the kernel's OOM killer ended during the attempt.
        oom_kills: u64,
    },
    /// The supervisor will restart it.
    Restarting {
        /// The worker.
        worker: usize,
        /// The pause before the restart.
        pause_s: f64,
        /// Why.
        why: String,
        /// Differences from the user's command.
        notes: Vec<String>,
    },
    /// It restarts when other processes have released memory.
    WaitingForMemory {
        /// The worker.
        worker: usize,
        /// The time until the memory is checked.
        pause_s: f64,
        /// Why.
        why: String,
    },
    /// The supervisor will not restart it.
    GaveUp {
        /// The worker.
        worker: usize,
        /// Why.
        why: String,
    },
    /// A change of a GPU's temperature, or a reaction to it.
    Heat {
        /// The GPU's index and name.
        card: String,
        /// What happened, with figures.
        what: String,
    },
    /// Temperatures are unknown, so programs run only half of the time.
    SensorsSilent {},
    /// The run reached its time limit.
    TimeOver {
        /// The time limit.
        duration_s: f64,
    },
    /// The journal, the report or the run's entry can't be written.
    RecordsLost {
        /// The system's error.
        reason: String,
    },
    /// Some output can't be logged.
    OutputLost {
        /// The worker.
        worker: usize,
        /// The system's error.
        reason: String,
    },
    /// Output is no longer forwarded.
    ScreenGone {
        /// `stdout` or `stderr`.
        stream: String,
        /// The system's error.
        reason: String,
    },
    /// A reader had stopped reading and reads again. Output from the meantime is only in the log.
    NotShown {
        /// `stdout` or `stderr`.
        stream: String,
        /// Bytes that were not forwarded.
        bytes: u64,
    },
    /// The run ended.
    RunEnded {
        /// Its status.
        status: Status,
        /// The exit code; `None` if it is unknown.
        code: Option<i32>,
    },
}

/// An event with its time, as stored in the journal.
pub type Record = plimsoll_telemetry::Record<SupervisorEvent>;
