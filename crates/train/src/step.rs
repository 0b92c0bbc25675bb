//! One training step: its micro-batches, then the update. Not here: the loop and the learning rates (`trainer.rs`).

use crate::{Engine, MicroBatch, Pace, TrainError, UnlimitedPace};
use plimsoll_data::Batch;
use plimsoll_graph::{ProgramKind, Scalars};
use plimsoll_telemetry::Event;
use std::sync::atomic::AtomicBool;

/// Runs a step without pauses. Its loss is then in the port of `ProgramKind::MicroStep`. Errors: the device fails.
pub(crate) fn run_step(engine: &mut Engine, micro_batches: &[Batch], scalars: Scalars) -> Result<(), TrainError> {
    run_paced_step(engine, micro_batches, scalars, &UnlimitedPace, &AtomicBool::new(false), &mut |_| {})
}

/// Like [`run_step`], but `pace` may pause after each micro-batch until `stop` is set. `emit` receives the events of a pause.
pub(crate) fn run_paced_step(
    engine: &mut Engine,
    micro_batches: &[Batch],
    mut scalars: Scalars,
    pace: &dyn Pace,
    stop: &AtomicBool,
    emit: &mut dyn FnMut(Event),
) -> Result<(), TrainError> {
    for (micro, batch) in micro_batches.iter().enumerate() {
        scalars.first_sample = batch.first_sample;
        let start = pace.now();
        let program = if micro == 0 { ProgramKind::MicroStep } else { ProgramKind::MicroStepAdd };
        engine.run_batch(program, batch, &scalars)?;
        if pace.watches() {
            engine.synchronize()?;
            pace.micro_batch(MicroBatch { step: scalars.step, took: pace.now().saturating_sub(start) }, stop, emit);
        }
    }
    engine.run(ProgramKind::Update, &scalars)
}
