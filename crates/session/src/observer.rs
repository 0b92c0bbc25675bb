//! What a caller sees of a session, and may do at its seams.

use crate::backend::Backend;
use plimsoll_data::Dataset;
use plimsoll_plan::Found;
use plimsoll_telemetry::{Event, Sink};
use plimsoll_train::{Outcome, RunFolder, Start, TrainerConfig};
use std::path::PathBuf;
use std::sync::Arc;

/// What a session trains, by which plan, and where. It changes when the plan changes.
pub struct Setup<'a, B> {
    /// The run's folder.
    pub folder: &'a RunFolder,
    /// Where the weights come from: for a plan that follows another, the checkpoint between them.
    pub start: &'a Start,
    /// The run's settings.
    pub trainer: &'a TrainerConfig,
    /// The data.
    pub dataset: &'a Arc<Dataset>,
    /// The plan.
    pub found: &'a Found,
    /// What put the plan on the device.
    pub backend: &'a B,
}

impl<B> Setup<'_, B> {
    /// Optimizer steps of a pass over the training data; may have a fraction.
    pub fn steps_per_epoch(&self) -> f64 {
        self.dataset.training() as f64 / self.found.plan.global_batch as f64
    }

    /// The number of the last step, if it is known in advance.
    pub fn last_step(&self) -> Option<u64> {
        self.trainer.length.last_step(self.steps_per_epoch())
    }
}

/// Sees a session's events as a [`Sink`], on the thread that trains. All methods but [`Sink::take`] have defaults that do
/// nothing.
pub trait Observer<B: Backend>: Sink {
    /// A plan is on its device and is about to train: the first one, or one that follows another. Returns files that are
    /// written in the run's folder with those of the plan, once the start is accepted. Errors end the session.
    fn plan_begins(&mut self, _: &Setup<'_, B>) -> Result<Vec<(PathBuf, Vec<u8>)>, B::Error> {
        Ok(vec![])
    }

    /// The start of the session is accepted: its first step follows.
    fn accepted(&mut self) {}

    /// The steps by the plan that began last have ended: with an outcome, or by an error (`None`).
    fn plan_ends(&mut self, _: Option<&Outcome>) {}

    /// Adds what is on disk to an error that ended the session after its start.
    fn explain(&self, error: B::Error, _: &Setup<'_, B>) -> B::Error {
        error
    }
}

/// Sees nothing.
pub struct Unobserved;

impl Sink for Unobserved {
    fn take(&mut self, _: &Event) {}
}

impl<B: Backend> Observer<B> for Unobserved {}
