//! Controls the speed of a run: a `Pace` is called between micro-batches and may delay the next one. Delays do not
//! change results. Not here: the decisions (`plimsoll-heat`, `plimsoll-orders`), and monitoring of cards
//! (`plimsoll-telemetry`).

use crate::Engine;
use plimsoll_telemetry::{EnergyUse, Event};
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It completed all steps.
    Finished,
    /// It was interrupted.
    Interrupted,
    /// A card was too hot.
    TooHot,
    /// It restarts with another plan.
    Replanned,
    /// The loss or the gradient became NaN or infinite.
    Diverged,
}

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Time of the system's clock that never goes back, since any start.
pub fn monotonic() -> Duration {
    START.elapsed()
}

/// A completed micro-batch of a step or of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MicroBatch {
    /// Its step; of an evaluation, the step before it.
    pub step: u64,
    /// Its duration.
    pub took: Duration,
}

/// Decides how fast a run goes.
pub trait Pace {
    /// The time since any start, which never decreases. Steps, pauses and the run are timed by it.
    fn now(&self) -> Duration {
        monotonic()
    }

    /// Whether it may ask to wait: only then does the run wait for a micro-batch before it starts the next.
    fn watches(&self) -> bool;

    /// Called after a micro-batch. Returns when the next one may start, or when `stop` is set; `emit` receives the
    /// events meanwhile.
    fn micro_batch(&self, made: MicroBatch, stop: &AtomicBool, emit: &mut dyn FnMut(Event));

    /// Whether the run drops the step in progress, because it was asked to stop and has less than `needed` left to finish the
    /// step and to save.
    fn drops_step(&self, _needed: Duration) -> bool {
        false
    }

    /// Called before a step, which may begin when this returns: time has passed since the last micro-batch.
    fn before_step(&self, _step: u64, _stop: &AtomicBool, _emit: &mut dyn FnMut(Event)) {}

    /// Called after the run waited for a batch: reading the data was slower than the steps.
    fn waited_for_data(&self, _waited: Duration) {}

    /// Called after a step.
    fn step_made(&self) {}

    /// Energy used by the run's cards so far, in all sessions; `None` if it is not measured.
    fn energy(&self) -> Option<EnergyUse> {
        None
    }

    /// Events since the last call.
    fn take_events(&self) -> Vec<Event>;

    /// Whether a checkpoint is due after this step, in addition to the regular ones.
    fn wants_checkpoint(&self) -> bool {
        false
    }

    /// Why the run should save and end after this step; `None` to continue. May be slow: it may check whether another
    /// plan fits.
    fn ends(&self, step: u64) -> Option<Ending>;

    /// Whether the plan with which the run is to restart takes over the state on the device, so that no checkpoint is needed.
    fn keeps_state(&self, _engine: &Engine) -> bool {
        false
    }

    /// Called if the state after this step could not be saved, so the run continues with its current plan.
    fn keeps_plan(&self, step: u64, reason: &str);
}

/// No limit on speed.
#[derive(Debug, Clone, Copy, Default)]
pub struct UnlimitedPace;

impl Pace for UnlimitedPace {
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
