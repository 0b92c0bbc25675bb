//! Measures, and so is left out of a usual run:
//! `cargo test --release -p plimsoll-plan arena::tests::speed -- --ignored --nocapture`.

use super::training::training_step;
use crate::arena::{lower_bound, pack};
use std::time::Instant;

#[test]
#[ignore = "a measurement, for release builds"]
fn pack_training_steps() {
    const STEPS: u64 = 400;
    for buffers in [200, 1_500, 5_000] {
        let mut ratios = Vec::new();
        let mut times_ms = Vec::new();
        for seed in 0..STEPS {
            let problem = training_step(seed, buffers);
            let start = Instant::now();
            let solution = pack(&problem);
            times_ms.push(start.elapsed().as_secs_f64() * 1e3);
            ratios.push(solution.peak as f64 / lower_bound(&problem).bytes as f64);
        }
        let exact = ratios.iter().filter(|&&ratio| ratio == 1.0).count();
        let over = ratios.iter().filter(|&&ratio| ratio > 1.002).count();
        let worst = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        println!(
            "about {buffers} buffers: {exact} of {STEPS} on the bound, {over} over 1.002 x, worst {:.5} x, mean {:.2} ms, longest {:.1} ms",
            worst(&ratios),
            times_ms.iter().sum::<f64>() / STEPS as f64,
            worst(&times_ms),
        );
    }
}
