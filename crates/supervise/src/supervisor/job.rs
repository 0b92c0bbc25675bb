//! What a supervisor is given, and what it gives back.

use crate::card_peaks::CardPeaks;
use crate::folder::Folder;
use crate::input::Input;
use crate::output::Stream;
use crate::pace::Pacer;
use crate::registry::Registry;
use crate::repair::Repair;
use crate::report::Report;
use crate::restarts::Limits;
use crate::shares::Share;
use plimsoll_units::Bytes;
use std::ffi::OsString;
use std::io;
use std::time::Duration;

/// How a run is supervised.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Limits on restarts of each worker.
    pub limits: Limits,
    /// How long a program may take to end once it was asked to.
    pub grace: Duration,
    /// A program that neither prints nor computes for so long hangs; `None`: nobody looks.
    pub hang_timeout: Option<Duration>,
    /// The run ends after so long.
    pub duration: Option<Duration>,
    /// The next worker starts once the one before has made so much of its progress, 0 to 1,
    pub stagger_fraction: f64,
    /// or once it has run for so long.
    pub stagger_time: Duration,
    /// How much of each worker's output is kept.
    pub log_bytes: Bytes,
    /// Variables that all programs get.
    pub variables: Vec<(String, String)>,
}

/// A run.
pub struct Job {
    /// Its folder.
    pub folder: Folder,
    /// Where it is entered.
    pub registry: Registry,
    /// How it is supervised.
    pub settings: Settings,
    /// The command as it was given, for people.
    pub command: Vec<String>,
    /// What each worker gets, and what it runs.
    pub workers: Vec<(Share, Box<dyn Repair>)>,
    /// The command that is a keeper: a process that calls [`keep`](crate::keep).
    pub keeper: Vec<OsString>,
    /// What another supervisor is started with, if this one is killed.
    pub arguments: Vec<OsString>,
    /// What programs read.
    pub input: Input,
    /// Where their stdout and stderr are passed on to.
    pub streams: [Stream; 2],
    /// How fast its programs may go, if somebody says so.
    pub pacer: Option<Pacer>,
    /// The most memory on cards, as far as cards are sampled while it goes.
    pub peaks: CardPeaks,
}

/// Why a run can't be supervised.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    /// The journal can't be opened.
    #[error(transparent)]
    Journal(#[from] plimsoll_telemetry::JournalError),
    /// The system refused.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// What came of a run.
#[derive(Debug)]
pub struct Supervised {
    /// What came of it.
    pub report: Report,
    /// Why not even the first program could be started; then the run's folder is gone.
    pub refusal: Option<Refusal>,
}

/// Why a program could not be started.
#[derive(Debug)]
pub struct Refusal {
    /// The program.
    pub program: String,
    /// What the system said.
    pub reason: io::Error,
    /// The exit code that shells give it, or 5 where the system could start nothing.
    pub code: i32,
}
