//! How fast a run may go: somebody who watches the card is asked between micro-batches. What is computed is the same, however
//! often a run waits. Not here: who decides (`plimsoll-heat`), and how cards are watched (`plimsoll-telemetry`).

use plimsoll_telemetry::{EnergyUse, Event};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Who decides how fast a run goes.
pub trait Pace {
    /// Whether it ever asks to wait: only then is a micro-batch waited for before the next is started.
    fn watches(&self) -> bool;

    /// A micro-batch took so long. Returns when the next may start, or when `stop` is set.
    fn micro_batch(&self, took: Duration, stop: &AtomicBool);

    /// A batch was waited for so long: what reads the data was slower than the steps.
    fn waited_for_data(&self, _waited: Duration) {}

    /// A step was made.
    fn step_made(&self) {}

    /// What the run's cards used so far, in all sessions; none where nobody tells.
    fn energy(&self) -> Option<EnergyUse> {
        None
    }

    /// What happened since this was last asked.
    fn take_events(&self) -> Vec<Event>;

    /// Whether the run is to save and end.
    fn stops(&self) -> bool;
}

/// As fast as it can.
#[derive(Debug, Clone, Copy, Default)]
pub struct Freely;

impl Pace for Freely {
    fn watches(&self) -> bool {
        false
    }

    fn micro_batch(&self, _: Duration, _: &AtomicBool) {}

    fn take_events(&self) -> Vec<Event> {
        vec![]
    }

    fn stops(&self) -> bool {
        false
    }
}
