//! Held-out loss.

use crate::{Engine, TrainError};
use plimsoll_data::Dataset;
use plimsoll_graph::{ProgramKind, Scalars};

/// Mean held-out loss per target (nats) over at most `most_samples` held-out samples, always the same ones, and the
/// number of predicted targets, using the programs of this kind. `None` if nothing is held out, or the plan has no such
/// program.
pub fn evaluate(
    engine: &mut Engine,
    kind: ProgramKind,
    dataset: &Dataset,
    most_samples: u64,
) -> Result<Option<(f64, u64)>, TrainError> {
    if engine.plan().program(kind).is_none() {
        return Ok(None);
    }
    let rows = engine.plan().micro_batch;
    let (mut total, mut predicted) = (0.0, 0u64);
    for batch in dataset.held_out_batches(most_samples, rows)? {
        let batch = batch?;
        let count = batch.real_targets();
        let scalars = Scalars { loss_scale: 1.0 / count.max(1) as f32, ..Scalars::default() };
        let program = engine.run_batch(kind, &batch, &scalars)?;
        let loss = engine.ports(program).loss.expect("an evaluation yields a loss");
        total += f64::from(engine.read_one(loss)?) * count as f64;
        predicted += count;
    }
    Ok((predicted > 0).then(|| (total / predicted as f64, predicted)))
}
