//! Training steps on random tokens: how fast, and in how much memory.

use crate::{Engine, Feed, Measured, TrainError};
use exec::philox;
use graph::Scalars;
use serde::Serialize;
use std::time::Instant;

/// What a benchmark measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BenchResult {
    /// Numbers over all counted steps.
    pub measured: Measured,
    /// Duration of each counted step.
    pub step_ms: Vec<f64>,
    /// Loss of the last step; near ln V, since tokens are random.
    pub loss: f64,
}

/// Makes `warmup` steps that don't count and `steps` that do, each of a whole global batch of random tokens.
pub fn bench(
    engine: &mut Engine,
    vocab_size: usize,
    warmup: u64,
    steps: u64,
    seed: u64,
) -> Result<BenchResult, TrainError> {
    engine.initialise(seed)?;
    let (micro_batch, accumulation, seq_len) =
        (engine.plan().micro_batch, engine.plan().accumulation, engine.plan().seq_len);
    let elements = micro_batch * seq_len;
    let loss = engine.ports("micro_step").loss.expect("a micro-step gives a loss");
    let mut step_ms = Vec::new();
    for step in 1..=warmup + steps {
        let random = |i: usize, stream: u32| {
            (philox([i as u32, stream, step as u32, 0], [seed as u32, 1])[0] as usize % vocab_size) as i32
        };
        let tokens = (0..elements * accumulation).map(|i| random(i, 0)).collect::<Vec<_>>();
        let targets = (0..elements * accumulation).map(|i| random(i, 1)).collect::<Vec<_>>();
        let start = Instant::now();
        let mut scalars = Scalars {
            seed,
            step,
            update: step,
            learning_rate: 3e-4,
            loss_scale: 1.0 / (elements * accumulation) as f32,
            ..Scalars::default()
        };
        for (micro, (tokens, targets)) in tokens.chunks(elements).zip(targets.chunks(elements)).enumerate() {
            scalars.first_sample = ((step - 1) as usize * accumulation * micro_batch + micro * micro_batch) as u64;
            let program = if micro == 0 { "micro_step" } else { "micro_step_add" };
            engine.run_fed(program, &Feed { tokens, targets, ..Feed::default() }, &scalars)?;
        }
        engine.run("update", &scalars)?;
        if step > warmup {
            step_ms.push(start.elapsed().as_secs_f64() * 1e3);
        }
        engine.first_step_is_done();
    }
    let measured = Measured::new(engine.memory(), &step_ms, elements * accumulation);
    Ok(BenchResult { measured, step_ms, loss: f64::from(engine.read_one(loss)?) })
}
