//! A step that diverged, undone. Where each parameter is updated as soon as its gradient is complete, some are updated
//! before the gradient of another turns out to be no number. Holding updates back, or keeping what they overwrite, would
//! take the memory that this saves; but a run is deterministic, so the state before the step is made again: from the
//! newest checkpoint, or from where the run began, by the steps since then.
//!
//! It costs a few bytes for each step since a checkpoint, and time only where a run diverged.

use crate::checkpoint;
use crate::step::run_step;
use crate::{Engine, Start, TrainError};
use plimsoll_data::{Dataset, Loader};
use plimsoll_graph::{ProgramKind, Scalars};
use plimsoll_plan::{Plan, PlannedProgram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is needed to make the state before a step again.
pub(crate) struct Undo {
    /// Where the run stood last so that it can be brought there again.
    origin: Start,
    /// The last step that was made there.
    step: u64,
    seed: u64,
    /// The scalars of the steps since then.
    made: Vec<Scalars>,
}

impl Undo {
    /// For a run that begins at `origin` after `step`; none if no step of this plan needs it.
    pub(crate) fn of(plan: &Plan, origin: Start, step: u64, seed: u64) -> Option<Self> {
        updates_early(plan).then_some(Self { origin, step, seed, made: Vec::new() })
    }

    /// A step was made.
    pub(crate) fn made(&mut self, scalars: &Scalars) {
        self.made.push(*scalars);
    }

    /// A checkpoint was saved after a step.
    pub(crate) fn saved(&mut self, origin: Start, step: u64) {
        (self.origin, self.step) = (origin, step);
        self.made.clear();
    }

    /// The last step before those that are rerun.
    pub(crate) fn first_step(&self) -> u64 {
        self.step
    }

    /// Makes the state after the last step that was made. Errors: the origin can't be read any more, or the device fails.
    /// Stops early, with false, if `stop` is set.
    pub(crate) fn undo(
        &self,
        engine: &mut Engine,
        dataset: &Arc<Dataset>,
        stop: &AtomicBool,
    ) -> Result<bool, TrainError> {
        self.return_to_origin(engine)?;
        let (micro_batch, global_batch) = (engine.plan().micro_batch, engine.plan().global_batch);
        let loader = Loader::start(Arc::clone(dataset), self.step, global_batch, micro_batch, 1)?;
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
        // An optimizer's state begins as zeros, whatever its format.
        let training = engine.parameters().iter().filter_map(|p| p.training.as_ref());
        for id in training.flat_map(|t| t.state.clone()).collect::<Vec<_>>() {
            let zeros = vec![0; engine.plan()[id].ty.bytes().0 as usize];
            engine.write(id, &zeros)?;
        }
        match &self.origin {
            Start::Weights(path) => checkpoint::load_weights(engine, path),
            _ => engine.initialise(self.seed),
        }
    }
}

/// Whether a step of this plan updates a parameter before it knows the norm of all gradients.
fn updates_early(plan: &Plan) -> bool {
    let norm = plan.program(ProgramKind::Update).and_then(|update| update.ports.grad_norm);
    let early = |program: &PlannedProgram| {
        let update = program.steps.iter().position(|step| step.op.update().is_some());
        let norm = program.steps.iter().position(|step| step.outputs.iter().any(|id| Some(*id) == norm));
        update.is_some() && update < norm
    };
    plan.programs.iter().any(early)
}
