//! One training step: the reference point of its loss if it has one (`reference_point.rs`), its micro-batches, then the update.
//! Not here: the loop and the learning rates (`trainer.rs`).

use crate::reference_point::ReferencePoint;
use crate::{Engine, MicroBatch, Pace, TrainError, UnlimitedPace};
use plimsoll_data::Batch;
use plimsoll_graph::{ProgramKind, Scalars};
use plimsoll_telemetry::Event;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Runs a step without pauses. Its loss is then in the port of `ProgramKind::MicroStep`. Errors: the device fails.
pub(crate) fn run_step(engine: &mut Engine, micro_batches: &[Batch], scalars: Scalars) -> Result<(), TrainError> {
    let expected = Expected::default();
    run_paced_step(engine, micro_batches, scalars, expected, &UnlimitedPace, &AtomicBool::new(false), &mut |_| {})?;
    Ok(())
}

/// Times measured earlier in the session; zero if unknown.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Expected {
    /// Time of a step.
    pub(crate) step: Duration,
    /// Time to save a checkpoint.
    pub(crate) save: Duration,
}

impl Expected {
    /// Time to finish a step that began `elapsed` ago, and to save. `left`: micro-batches to run, of which the longest so
    /// far took `longest`. The update counts as one more.
    fn needed(self, elapsed: Duration, left: usize, longest: Duration) -> Duration {
        let by_batches = longest * (left as u32 + 1);
        by_batches.max(self.step.saturating_sub(elapsed)) + self.save
    }
}

/// Like [`run_step`], but `pace` may pause after each micro-batch until `stop` is set, and may drop the step once it is.
/// `emit` receives the events of a pause. Returns false if the step was dropped: the weights are then those before it, since
/// no update precedes the last micro-batch.
pub(crate) fn run_paced_step(
    engine: &mut Engine,
    micro_batches: &[Batch],
    mut scalars: Scalars,
    expected: Expected,
    pace: &dyn Pace,
    stop: &AtomicBool,
    emit: &mut dyn FnMut(Event),
) -> Result<bool, TrainError> {
    scalars.micro_batch_share = 1.0 / micro_batches.len().max(1) as f32;
    let (begun, mut longest) = (pace.now(), Duration::ZERO);
    let mismatched = micro_batches.iter().filter_map(|batch| batch.mismatched.as_deref());
    let estimates = mismatched.map(|batch| (ProgramKind::Evaluate, batch));
    let first = std::iter::once(ProgramKind::MicroStep);
    let kinds = first.chain(std::iter::repeat(ProgramKind::MicroStepAdd));
    let runs = estimates.chain(kinds.zip(micro_batches)).collect::<Vec<_>>();
    let mut reference_point = ReferencePoint::default();
    for (index, &(kind, batch)) in runs.iter().enumerate() {
        scalars.first_sample = batch.first_sample;
        let start = pace.now();
        if kind == ProgramKind::Evaluate {
            reference_point.add(engine, kind, batch)?;
            scalars.reference_point = reference_point.get();
        } else {
            engine.run_batch(kind, batch, &scalars)?;
        }
        if pace.watches() {
            engine.synchronize()?;
            let took = pace.now().saturating_sub(start);
            longest = longest.max(took);
            pace.micro_batch(MicroBatch { step: scalars.step, took }, stop, emit);
            let left = runs.len() - 1 - index;
            if left > 0
                && stop.load(Ordering::Relaxed)
                && pace.drops_step(expected.needed(pace.now().saturating_sub(begun), left, longest))
            {
                return Ok(false);
            }
        }
    }
    engine.run(ProgramKind::Update, &scalars)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_step_is_expected_from_its_micro_batches_and_the_last_step() {
        let ms = Duration::from_millis;
        let expected = Expected { step: ms(0), save: ms(50) };
        assert_eq!(expected.needed(ms(100), 3, ms(100)), ms(450));
        // An update that takes longer than a micro-batch.
        let expected = Expected { step: ms(2000), ..expected };
        assert_eq!(expected.needed(ms(100), 3, ms(100)), ms(1950));
    }
}
