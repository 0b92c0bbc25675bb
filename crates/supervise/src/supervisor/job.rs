//! Input and output of a supervisor.

use crate::card_peaks::CardPeaks;
use crate::folder::Folder;
use crate::input::Input;
use crate::output::Stream;
use crate::pace::Pacer;
use crate::repair::Repair;
use crate::restarts::Limits;
use crate::shares::Share;
use plimsoll_registry::{Registry, Report};
use plimsoll_units::Bytes;
use std::ffi::OsString;
use std::io;
use std::time::Duration;

/// How a run is supervised.
#[derive(Debug, Clone, PartialEq)]
pub struct SuperviseSettings {
    /// Limits on restarts of each worker.
    pub limits: Limits,
    /// How long a program may take to end after SIGTERM.
    pub grace: Duration,
    /// How long a program may neither print nor compute before it counts as hung; `None` if hangs are not detected.
    pub hang_timeout: Option<Duration>,
    /// Time limit of the run; `None` if it has none.
    pub duration: Option<Duration>,
    /// Progress of the previous worker, 0 to 1, at which the next one starts,
    pub stagger_fraction: f64,
    /// or the time after which it starts anyway.
    pub stagger_time: Duration,
    /// Size limit of each worker's log.
    pub log_bytes: Bytes,
    /// Environment variables for all programs.
    pub variables: Vec<(String, String)>,
}

/// A run to supervise.
pub struct Job {
    /// Its folder.
    pub folder: Folder,
    /// The registry to add it to.
    pub registry: Registry,
    /// Supervision settings.
    pub settings: SuperviseSettings,
    /// The command as the user gave it, for display.
    pub command: Vec<String>,
    /// Each worker's share of the machine, and the repair that chooses its command.
    pub workers: Vec<(Share, Box<dyn Repair>)>,
    /// The command line of a keeper: a process that calls [`keep`](crate::keep).
    pub keeper: Vec<OsString>,
    /// Arguments for another supervisor, if this one is killed.
    pub arguments: Vec<OsString>,
    /// Where programs read stdin from.
    pub input: Input,
    /// Where their stdout and stderr are forwarded to.
    pub streams: [Stream; 2],
    /// Limits the speed of the programs; `None` if nothing does.
    pub pacer: Option<Pacer>,
    /// Peak memory of each sampled card.
    pub peaks: CardPeaks,
}

/// Why a run can't be supervised.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    /// The journal can't be opened.
    #[error(transparent)]
    Journal(#[from] plimsoll_telemetry::JournalError),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// The result of a run.
#[derive(Debug)]
pub struct Supervised {
    /// The report.
    pub report: Report,
    /// Why the first program could not be started; the run's folder was removed then.
    pub refusal: Option<Refusal>,
}

/// Why a program could not be started.
#[derive(Debug)]
pub struct Refusal {
    /// The program.
    pub program: String,
    /// The system's error.
    pub reason: io::Error,
    /// The exit code that shells use for it, or 5 if the system could not start any program.
    pub code: i32,
}
