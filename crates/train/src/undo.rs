//! Undoes a step that diverged. If each parameter is updated as soon as its gradient is complete, some are updated
//! before the gradient of another turns out not to be finite. Delaying updates, or keeping the overwritten values,
//! would cost the memory that early updates save. But a run is deterministic, so the state before the step is
//! recomputed: from the newest checkpoint, or from the start of the run, by repeating the steps since then.
//!
//! This costs a few bytes per step since a checkpoint, and time only if a run diverges.

use crate::checkpoint;
use crate::start::load_first;
use crate::step::run_step;
use crate::{Base, Engine, Start, TrainError, TrainerConfig};
use plimsoll_data::{Dataset, Loader};
use plimsoll_graph::Scalars;
use plimsoll_plan::Plan;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The data needed to recompute the state before a step.
#[derive(Debug)]
pub(crate) struct Undo {
    /// The newest state that can be restored.
    origin: Start,
    /// The last step included in `origin`.
    step: u64,
    seed: u64,
    base: Option<Base>,
    /// The scalars of the steps since then.
    made: Vec<Scalars>,
}

impl Undo {
    /// For a run that starts at `origin` after `step`; `None` if no step of this plan needs it.
    pub(crate) fn of(plan: &Plan, origin: Start, step: u64, config: &TrainerConfig) -> Option<Self> {
        let (seed, base) = (config.seed, config.base.clone());
        plan.updates_early().then(|| Self { origin, step, seed, base, made: Vec::new() })
    }

    /// Records a completed step.
    pub(crate) fn made(&mut self, scalars: &Scalars) {
        self.made.push(*scalars);
    }

    /// Records a checkpoint saved after a step.
    pub(crate) fn saved(&mut self, origin: Start, step: u64) {
        (self.origin, self.step) = (origin, step);
        self.made.clear();
    }

    /// The last step before those that are repeated.
    pub(crate) fn first_step(&self) -> u64 {
        self.step
    }

    /// Recomputes the state after the last completed step. Errors: the origin can't be read anymore, or the device
    /// fails. Stops early and returns false if `stop` is set.
    pub(crate) fn undo(
        &self,
        engine: &mut Engine,
        dataset: &Arc<Dataset>,
        stop: &AtomicBool,
    ) -> Result<bool, TrainError> {
        self.return_to_origin(engine)?;
        let (micro_batch, global_batch) = (engine.plan().micro_batch, engine.plan().global_batch);
        let mut loader = Loader::start(Arc::clone(dataset), self.step, global_batch, micro_batch, 1);
        for scalars in &self.made {
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            let batches = loader.next_step()?;
            run_step(engine, &batches.micro, *scalars)?;
            loader.give_back(batches);
        }
        Ok(true)
    }

    fn return_to_origin(&self, engine: &mut Engine) -> Result<(), TrainError> {
        if let Start::Resume(path) = &self.origin {
            checkpoint::verify(path)?;
            return checkpoint::restore(engine, path);
        }
        // An optimizer's state starts as zeros in every format.
        let training = engine.parameters().iter().filter_map(|p| p.training.as_ref());
        for id in training.flat_map(|t| t.state.clone()).collect::<Vec<_>>() {
            let zeros = vec![0; engine.plan()[id].ty.bytes().0 as usize];
            engine.write(id, &zeros)?;
        }
        load_first(engine, &self.origin, self.base.as_ref(), self.seed)
    }
}
