//! Trains on random tokens to measure speed and memory.

use crate::step::run_step;
use crate::{Engine, Measured, TrainError};
use plimsoll_data::Batch;
use plimsoll_exec::philox;
use plimsoll_graph::{ProgramKind, Scalars, TensorId};
use plimsoll_plan::Plan;
use serde::Serialize;
use std::time::{Duration, Instant};

/// The result of a benchmark.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BenchResult {
    /// Measurements over all counted steps.
    pub measured: Measured,
    /// Duration of each counted step.
    pub step_ms: Vec<f64>,
    /// Loss of the last step; near ln V, since tokens are random.
    pub loss: f64,
}

/// Runs `warmup` uncounted steps, then `steps` counted ones, each on a whole global batch of random tokens.
pub fn bench(
    engine: &mut Engine,
    vocab_size: usize,
    warmup: u64,
    steps: u64,
    seed: u64,
) -> Result<BenchResult, TrainError> {
    engine.initialize(seed)?;
    let (mut step_ms, mut loss) = (Vec::new(), f32::NAN);
    let tokens_per_step = engine.plan().tokens_per_step() as f64;
    for step in 1..=warmup + steps {
        let ran = random_step(engine, vocab_size, seed, step)?;
        if step > warmup {
            step_ms.push(ran.took.as_secs_f64() * 1e3);
        }
        loss = ran.loss;
        engine.first_step_is_done();
    }
    let tokens_per_s = step_ms.iter().map(|ms| tokens_per_step * 1e3 / ms).collect::<Vec<_>>();
    let measured = Measured::new(engine.memory(), &step_ms, &tokens_per_s);
    Ok(BenchResult { measured, step_ms, loss: f64::from(loss) })
}

/// A step on random tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomStep {
    /// Its loss.
    pub loss: f32,
    /// Its duration, without the generation of the tokens.
    pub took: Duration,
}

/// Runs the step of this number (from 1) on a global batch of random tokens, which are a function of seed and step.
/// Errors: the device fails.
pub fn random_step(engine: &mut Engine, vocab_size: usize, seed: u64, step: u64) -> Result<RandomStep, TrainError> {
    let batches = random_batches(engine.plan(), vocab_size, seed, step);
    let loss = engine.ports(ProgramKind::MicroStep).loss.expect("a micro-step yields a loss");
    let start = Instant::now();
    run_step(engine, &batches, scalars_of(&batches, seed, step))?;
    let took = start.elapsed();
    Ok(RandomStep { loss: engine.read_one(loss)?, took })
}

/// The scalars of a step (from 1) with these micro-batches.
fn scalars_of(batches: &[Batch], seed: u64, step: u64) -> Scalars {
    let targets = batches.iter().map(|batch| batch.targets.len()).sum::<usize>();
    Scalars { seed, step, update: step, learning_rate: 3e-4, loss_scale: 1.0 / targets as f32, ..Scalars::default() }
}

/// The micro-batches of a step (from 1), of the plan's maximum length.
fn random_batches(plan: &Plan, vocab_size: usize, seed: u64, step: u64) -> Vec<Batch> {
    let random = |stream: u32, from: usize, count: usize| {
        let at = |i: usize| philox([i as u32, stream, step as u32, 0], [seed as u32, 1])[0] as usize % vocab_size;
        (from..from + count).map(|i| at(i) as i32).collect::<Vec<_>>()
    };
    let (rows, source_len, target_len) = (plan.micro_batch, plan.seq_len, plan.target_len);
    let batch = |micro: usize| {
        let length = target_len.unwrap_or(source_len);
        // Encoders have one target per sample, and may have several candidates; preferences have two rows per sample.
        let ports = plan.program(ProgramKind::MicroStep).map(|program| program.ports.clone()).unwrap_or_default();
        let of_row = |port: Option<TensorId>| port.map_or(length, |port| plan[port].ty.elements() / rows);
        let of_tokens = ports.tokens.map_or(source_len, |port| plan[port].ty.elements() / rows);
        let tokens = random(0, micro * rows * of_tokens, rows * of_tokens);
        let [of_targets, of_decoder] = [ports.targets, ports.decoder_tokens].map(of_row);
        let targets = random(1, micro * rows * of_targets, rows * of_targets);
        let batch = Batch {
            rows,
            source_len,
            target_len,
            segments: target_len.map(|_| vec![1; tokens.len()]),
            decoder_segments: vec![1; target_len.map_or(0, |_| rows * of_decoder)],
            decoder_tokens: target_len.map_or(vec![], |_| random(2, micro * rows * of_decoder, rows * of_decoder)),
            tokens,
            targets,
            compares: ports.rewards.is_some(),
            first_sample: (step - 1) * plan.global_batch as u64 + (micro * rows) as u64,
            ..Batch::default()
        };
        let mismatched = plan.has_reference_point().then(|| Box::new(batch.clone()));
        Batch { mismatched, ..batch }
    };
    (0..plan.accumulation).map(batch).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::{Graph, Targets};

    #[test]
    fn micro_batches_are_the_parts_of_one_batch() {
        let nothing = plimsoll_plan::lay_out(&Graph::default(), &Targets::cpu(1));
        let batch = |micro_batch: usize, target_len: Option<usize>, step: u64| {
            let accumulation = 6 / micro_batch;
            let plan = Plan { micro_batch, accumulation, global_batch: 6, seq_len: 4, target_len, ..nothing.clone() };
            let parts = random_batches(&plan, 1000, 3, step);
            assert_eq!(parts.len(), accumulation);
            assert!(parts.iter().all(|part| (part.rows, part.target_len) == (micro_batch, target_len)));
            let firsts = parts.iter().map(|part| part.first_sample).collect::<Vec<_>>();
            let expected = (0..accumulation).map(|micro| (step - 1) * 6 + (micro * micro_batch) as u64);
            assert_eq!(firsts, expected.collect::<Vec<_>>());
            let of = |tokens: fn(&Batch) -> &Vec<i32>| parts.iter().flat_map(tokens).copied().collect::<Vec<_>>();
            [of(|part| &part.tokens), of(|part| &part.targets), of(|part| &part.decoder_tokens)]
        };
        for target_len in [None, Some(3)] {
            let whole = batch(6, target_len, 2);
            assert_eq!(whole[0].len(), 24);
            assert_eq!(whole[1].len(), 6 * target_len.unwrap_or(4));
            assert!([3, 2, 1].iter().all(|&micro_batch| batch(micro_batch, target_len, 2) == whole), "{target_len:?}");
            assert_ne!(batch(6, target_len, 1), whole);
        }
    }
}
