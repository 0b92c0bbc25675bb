//! How fast a run may go: somebody who watches the card, and who asks, is asked between micro-batches. What is computed is the
//! same, however often a run waits. Not here: who decides (`plimsoll-heat`, `plimsoll-orders`), and how cards are watched
//! (`plimsoll-telemetry`).

use crate::Ending;
use plimsoll_telemetry::{EnergyUse, Event};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// A micro-batch that was computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MicroBatch {
    /// The step that it is a part of.
    pub step: u64,
    /// Time that it took.
    pub took: Duration,
}

/// Who decides how fast a run goes.
pub trait Pace {
    /// Whether it ever asks to wait: only then is a micro-batch waited for before the next is started.
    fn watches(&self) -> bool;

    /// A micro-batch was computed. Returns when the next may start, or when `stop` is set; `tell` is told what happens
    /// meanwhile.
    fn micro_batch(&self, made: MicroBatch, stop: &AtomicBool, tell: &mut dyn FnMut(Event));

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

    /// Why the run is to save and end after this step, if it is. May take long: whether another plan fits is found out here.
    fn ends(&self, step: u64) -> Option<Ending>;

    /// The state after this step could not be saved, so that the run goes on with the plan that it has.
    fn keeps_plan(&self, step: u64, reason: &str);
}

/// As fast as it can.
#[derive(Debug, Clone, Copy, Default)]
pub struct Freely;

impl Pace for Freely {
    fn watches(&self) -> bool {
        false
    }

    fn micro_batch(&self, _: MicroBatch, _: &AtomicBool, _: &mut dyn FnMut(Event)) {}

    fn take_events(&self) -> Vec<Event> {
        vec![]
    }

    fn ends(&self, _: u64) -> Option<Ending> {
        None
    }

    fn keeps_plan(&self, _: u64, _: &str) {}
}
