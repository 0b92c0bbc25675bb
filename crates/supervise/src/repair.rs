//! The interface between running processes and deciding what to do when they end: a [`Repair`] says which command the
//! supervisor starts, and the supervisor reports how it ended. Not here: processes (`supervisor/`), the meaning of ends
//! (`ends/`) and the changes that help (`ladder/`).

use crate::memory::MemoryKind;
use plimsoll_registry::{Attempt, Progress, RepairState};
use std::time::Duration;

/// How an attempt ended, as far as the system reports it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ending {
    /// The exit code; `None` if a signal ended it or the code is unknown.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The last bytes of stdout and stderr, in order of arrival.
    pub tail: Vec<u8>,
    /// Processes in the supervisor's control group that the kernel's OOM killer ended during the attempt.
    pub oom_kills: u64,
    /// Whether the supervisor ended it as hung.
    pub hung: bool,
    /// How long it ran.
    pub ran_for: Duration,
    /// The furthest progress in its output.
    pub progress: Option<Progress>,
}

impl Ending {
    /// Whether it finished on its own with exit code 0.
    pub fn is_success(&self) -> bool {
        self.code == Some(0) && !self.hung
    }

    /// Whether its exit status is unknown: this supervisor adopted it, and its keeper is gone.
    pub fn is_unknown(&self) -> bool {
        self.code.is_none() && self.signal.is_none() && !self.hung
    }
}

/// The meaning of an end, and the decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The kind of end, used to count failures: `card_memory`, `exit_1`.
    pub kind: String,
    /// Text that is equal for two ends with the same cause, used to detect crash loops.
    pub cause: String,
    /// The decision. Ignored after a success.
    pub decision: Decision,
}

/// What to do after an end.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Restart.
    Again {
        /// The command to start.
        attempt: Attempt,
        /// Why, for display.
        why: String,
    },
    /// Restart when other processes have released memory.
    WhenFree {
        /// The command to start.
        attempt: Attempt,
        /// The memory that it ran out of.
        memory: MemoryKind,
        /// Why, for display.
        why: String,
    },
    /// Restart with the smallest settings. When other processes have released memory, [`Repair::restored`] is the next
    /// attempt.
    Reduced {
        /// The command to start.
        attempt: Attempt,
        /// The memory that it ran out of.
        memory: MemoryKind,
        /// Why, for display.
        why: String,
    },
    /// Do not restart.
    Stop {
        /// Why, for display.
        why: String,
    },
}

/// Decides which command to start, at first and after each end. One per worker.
pub trait Repair {
    /// The first attempt.
    fn start(&mut self) -> Attempt;
    /// Decides what to do after an end, including a success. The supervisor itself enforces restart limits, pauses and
    /// crash-loop detection, and may stop although this says to restart.
    fn next(&mut self, ending: &Ending) -> Verdict;
    /// The attempt with the settings before the smallest ones; `None` if it does not run with these.
    fn restored(&mut self) -> Option<Attempt> {
        None
    }

    /// Its state.
    fn past(&self) -> RepairState {
        RepairState::default()
    }

    /// Continues from the state of another repair. Called instead of [`start`](Self::start).
    fn resume(&mut self, past: &RepairState) {
        let _ = past;
    }
}
