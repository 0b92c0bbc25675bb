//! Measurements, which a usual test run ignores:
//! `cargo test --release -p plimsoll-arena tests::speed -- --ignored --nocapture`.

use super::cut::{CAPACITY, Cut, cut};
use super::training::training_step;
use crate::{Status, lower_bound, pack, solve};
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
            let solution = pack(&problem, 0, 0);
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

#[test]
#[ignore = "a measurement, for release builds"]
fn solve_cut_rectangles() {
    const PROBLEMS: u64 = 6;
    let plain = Cut { pieces: 100, pinwheels: 20, left_out: 0, shortened: 0, stretch: 1 };
    for how in [
        plain,
        Cut { pieces: 200, ..plain },
        Cut { pieces: 400, ..plain },
        Cut { left_out: 10, ..plain },
        Cut { shortened: 10, ..plain },
        Cut { left_out: 5, shortened: 5, stretch: 10, ..plain },
        Cut { pieces: 200, left_out: 2, ..plain },
        Cut { pieces: 200, left_out: 10, ..plain },
        Cut { pieces: 200, shortened: 10, ..plain },
    ] {
        let mut times_s = Vec::new();
        for seed in 0..PROBLEMS {
            let problem = cut(seed, how);
            let start = Instant::now();
            let outcome = solve(&problem, Some(CAPACITY), &mut || start.elapsed().as_secs() >= 10);
            if outcome.status != Status::Stopped {
                times_s.push(start.elapsed().as_secs_f64());
            }
        }
        times_s.sort_by(f64::total_cmp);
        println!("{} of {PROBLEMS} within 10 s, in {times_s:.3?} s: {how:?}", times_s.len());
    }
}
