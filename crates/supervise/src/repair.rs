//! The seam between processes and what follows from their ends: the supervisor starts what a [`Repair`] tells it to, and
//! tells it how that ended. Not here: processes (`supervisor.rs`), what an end means and what helps against it.

use crate::output::Progress;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::time::Duration;

/// How an attempt ended, as far as the system told.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ending {
    /// The exit code; `None` if a signal ended it, or nobody knows.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The last bytes of stdout and stderr, in the order in which they came.
    pub tail: Vec<u8>,
    /// Processes of the supervisor's control group that the kernel ended for lack of memory in that time.
    pub oom_kills: u64,
    /// Whether it was ended because it neither said nor did anything for too long.
    pub hung: bool,
    /// How long it ran.
    pub ran_for: Duration,
    /// The furthest that its output told of.
    pub progress: Option<Progress>,
}

impl Ending {
    /// Whether it came to its end by itself and was content.
    pub fn is_success(&self) -> bool {
        self.code == Some(0) && !self.hung
    }

    /// Whether nobody knows how it ended: it is not the supervisor's own, and who started it is gone.
    pub fn is_unknown(&self) -> bool {
        self.code.is_none() && self.signal.is_none() && !self.hung
    }
}

/// A command as it is to be started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// Variables that are set besides what the supervisor sets; these win.
    pub env: Vec<(OsString, OsString)>,
    /// What differs from the command that was given, for people: a line each.
    pub notes: Vec<String>,
}

/// What an end was, and what follows.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// What kind of end, by which failures are counted: `out_of_memory`, `exit_1`.
    pub kind: String,
    /// The same for two ends of the same cause, whatever else was printed: a loop of crashes is recognized by it.
    pub cause: String,
    /// What follows. Of no meaning after a success.
    pub decision: Decision,
}

/// What follows from an end.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// It is started again.
    Again {
        /// As what.
        attempt: Attempt,
        /// Why, for people.
        why: String,
    },
    /// It is not.
    Stop {
        /// Why, for people.
        why: String,
    },
}

/// What a [`Repair`] came to, so that another supervisor's goes on from there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// Steps so far, by name.
    pub steps: Vec<String>,
    /// What the program did not take.
    pub refused: Vec<String>,
    /// Whether memory was short.
    pub has_failed: bool,
    /// Whether the last step is new.
    pub is_unproven: bool,
}

/// Decides what is started, first and after each end. One for each worker.
pub trait Repair {
    /// The first attempt.
    fn start(&mut self) -> Attempt;

    /// What follows from an end. Is told of successes, too. Limits on restarts, pauses between them and loops of crashes
    /// are the supervisor's affair: it stops where they say so, whatever is decided here.
    fn next(&mut self, ending: &Ending) -> Verdict;

    /// What it came to.
    fn past(&self) -> Past {
        Past::default()
    }

    /// Goes on from what another came to, in place of [`start`](Self::start).
    fn resume(&mut self, past: &Past) {
        let _ = past;
    }
}
