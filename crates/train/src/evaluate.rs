//! Held-out loss.

use crate::reference_point::ReferencePoint;
use crate::{Engine, TrainError};
use plimsoll_data::Dataset;
use plimsoll_graph::ops::REWARDS;
use plimsoll_graph::{ProgramKind, Scalars};
use std::sync::atomic::{AtomicBool, Ordering};

/// The result of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HeldOutLoss {
    /// The mean loss.
    Mean {
        /// Mean loss per target; nats.
        loss: f64,
        /// Number of predicted targets; of preferences, examples.
        targets: u64,
        /// The numbers described at [`REWARDS`](plimsoll_graph::ops::REWARDS); `None` unless the data is preferences.
        rewards: Option<[f64; REWARDS]>,
    },
    /// Nothing is held out, or the plan has no program for it.
    Nothing,
    /// The evaluation was stopped.
    Stopped,
}

/// Mean held-out loss over at most `most_samples` held-out samples, always the same ones, using the programs of this kind.
/// Calls `made` after each batch, and ends early if `stop` is set.
pub fn evaluate(
    engine: &mut Engine,
    kind: ProgramKind,
    dataset: &Dataset,
    most_samples: u64,
    stop: &AtomicBool,
    made: &mut dyn FnMut(),
) -> Result<HeldOutLoss, TrainError> {
    if engine.plan().program(kind).is_none() {
        return Ok(HeldOutLoss::Nothing);
    }
    let rows = engine.plan().micro_batch;
    let (mut total, mut predicted, mut rewards) = (0.0, 0u64, [0.0; REWARDS]);
    let mut has_rewards = false;
    let mut reference_point = ReferencePoint::default();
    if engine.plan().has_reference_point() {
        for batch in dataset.held_out_batches(most_samples, rows)? {
            if stop.load(Ordering::Relaxed) {
                return Ok(HeldOutLoss::Stopped);
            }
            reference_point.add(
                engine,
                kind,
                batch?.mismatched.as_deref().expect("batches of single answers have it"),
            )?;
            made();
        }
    }
    for batch in dataset.held_out_batches(most_samples, rows)? {
        let batch = batch?;
        if stop.load(Ordering::Relaxed) {
            return Ok(HeldOutLoss::Stopped);
        }
        let count = batch.real_targets();
        let scalars = Scalars {
            loss_scale: 1.0 / count.max(1) as f32,
            reference_point: reference_point.get(),
            ..Scalars::default()
        };
        let program = engine.run_batch(kind, &batch, &scalars)?;
        let loss = engine.ports(program).loss.expect("an evaluation yields a loss");
        total += f64::from(engine.read_one(loss)?) * count as f64;
        if let Some(found) = engine.rewards(program)? {
            has_rewards = true;
            rewards.iter_mut().zip(found).for_each(|(sum, reward)| *sum += reward * count as f64);
        }
        predicted += count;
        made();
    }
    Ok(match predicted {
        0 => HeldOutLoss::Nothing,
        targets => HeldOutLoss::Mean {
            loss: total / targets as f64,
            targets,
            rewards: has_rewards.then(|| rewards.map(|sum| sum / targets as f64)),
        },
    })
}
