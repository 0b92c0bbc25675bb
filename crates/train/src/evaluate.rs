//! Held-out loss.

use crate::{Engine, Feed, TrainError};
use data::{Batches, PADDING_TARGET};
use graph::Scalars;

/// The program that evaluates the weights.
pub const EVALUATE: &str = "evaluate";

/// Mean held-out loss a token (nats) over at most `most_samples` held-out samples, always the same ones, and the
/// number of tokens predicted, by the program `name`. None if nothing is held out, or if the plan has no such program.
pub fn evaluate(
    engine: &mut Engine,
    name: &str,
    batches: &Batches,
    most_samples: u64,
) -> Result<Option<(f64, u64)>, TrainError> {
    let (rows, seq_len) = (engine.plan().micro_batch, engine.plan().seq_len);
    let subset = batches.held_out_subset(most_samples);
    let program = engine.plan().program(name).filter(|_| !subset.is_empty());
    let Some(loss) = program.and_then(|program| program.ports.loss) else { return Ok(None) };
    let mut tokens = vec![0; rows * seq_len];
    let mut targets = vec![0; rows * seq_len];
    let (mut total, mut predicted) = (0.0, 0u64);
    for first in (0..subset.len()).step_by(rows) {
        batches.fill_held_out(subset, first, rows, &mut tokens, &mut targets);
        let count = targets.iter().filter(|&&t| t != PADDING_TARGET).count() as u64;
        let scalars = Scalars { loss_scale: 1.0 / count as f32, ..Scalars::default() };
        engine.run_fed(name, &Feed { tokens: &tokens, targets: &targets, ..Feed::default() }, &scalars)?;
        total += f64::from(engine.read_one(loss)?) * count as f64;
        predicted += count;
    }
    Ok(Some((total / predicted as f64, predicted)))
}
