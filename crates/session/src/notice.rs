//! What a session tells its caller in addition to its events.

use plimsoll_power::PutBack;
use plimsoll_units::Seconds;
use std::io;
use std::sync::Arc;

/// Something that happened to a session and is no event of its run. None of it ends the run.
#[derive(Debug)]
pub enum Notice {
    /// The run's folder takes no orders from other processes.
    NoOrders(io::Error),
    /// An order asked the run to stop: it finishes its step and saves a checkpoint.
    AskedToStop,
    /// The run drops the step in progress, to save within the grace period of its stop.
    StepDropped,
    /// The run is still paused, after this time. Given once a minute.
    StillPaused(Seconds),
    /// The run still waits for memory, after this time. Given once a minute.
    StillWaiting(Seconds),
    /// Cards and system are not sampled: the system refused a thread.
    NoSamples(io::Error),
    /// Samples of cards and system are not kept in the run's folder.
    SamplesNotKept(io::Error),
    /// Samples are no longer kept: the disk refused one.
    SamplesLost(io::Error),
    /// What happened when a setting of the card was put back.
    PutBack(PutBack),
}

/// Receives notices, on any thread.
pub type Notices = Arc<dyn Fn(Notice) + Send + Sync>;
