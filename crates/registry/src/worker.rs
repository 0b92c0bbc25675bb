//! A worker of a supervised run, as its run's entry describes it: plain data, from which another supervisor continues.

use crate::processes::Process;
use crate::progress::Progress;
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;

/// A worker of a supervised run: its processes, and what another supervisor needs to continue it. Written before its
/// program starts, so that every started program has an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerEntry {
    /// Its index, from 0.
    pub worker: usize,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The first process; `None` before it starts and after it ends.
    pub leader: Option<Process>,
    /// Inode numbers of the pipes that it prints to.
    pub pipes: Vec<u64>,
    /// Its keeper.
    pub keeper: Option<Process>,
    /// The command.
    pub command: Attempt,
    /// The state of its repair.
    pub past: RepairState,
    /// Its restart history.
    pub seen: RestartHistory,
    /// Whether it waits until other processes release memory.
    #[serde(default)]
    pub waits_for_memory: bool,
    /// Its result, once it will not restart.
    pub outcome: Option<WorkerOutcome>,
}

/// What a worker may use of each of its GPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuShare {
    /// The worker's index.
    pub worker: usize,
    /// The UUIDs of the GPUs that it may use.
    pub cards: Vec<String>,
    /// Its memory limit; `None` if it has none.
    #[serde(rename = "memory_bytes")]
    pub memory: Option<Bytes>,
    /// Its fraction of the multiprocessors, 0 to 1; `None` for all.
    pub compute: Option<f64>,
}

/// A command to start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// Environment variables in addition to those of the supervisor; these win.
    pub env: Vec<(OsString, OsString)>,
    /// Differences from the user's command, for display: one line each.
    pub notes: Vec<String>,
}

/// The state of the repair of a command, from which another supervisor continues.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairState {
    /// Names of the steps taken so far.
    pub steps: Vec<String>,
    /// Names of steps that the program rejected.
    pub refused: Vec<String>,
    /// Whether the run ran out of memory.
    pub has_failed: bool,
    /// Whether the last step has not proved to work yet.
    pub is_unproven: bool,
    /// The number of steps before the smallest settings, while it runs with these.
    #[serde(default)]
    pub reduced_after: Option<usize>,
}

/// The restarts of a worker and the ends before them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartHistory {
    /// Restarts so far.
    pub made: u32,
    /// The cause of the last end.
    pub cause: Option<String>,
    /// Consecutive ends with that cause.
    pub same: u32,
    /// Consecutive ends without progress.
    pub idle: u32,
    /// The furthest progress.
    pub furthest: Option<Progress>,
    /// Consecutive waits for memory without progress.
    #[serde(default)]
    pub waits: u32,
}

/// The result of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerOutcome {
    /// The exit code; `None` if it is unknown.
    pub code: Option<i32>,
    /// Whether its program finished with exit code 0.
    pub is_success: bool,
}

impl WorkerOutcome {
    /// The result of an end, with the exit code that shells use for it.
    pub fn of(code: Option<i32>, signal: Option<i32>) -> Self {
        Self { code: code.or_else(|| signal.map(|signal| 128 + signal)), is_success: code == Some(0) }
    }
}
