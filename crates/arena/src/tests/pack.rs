//! The heuristics: always valid, never below the bound, nearly on it for training steps.

use super::brute::least_peak;
use super::random::random_problem;
use super::training::training_step;
use crate::{Buffer, Problem, lower_bound, pack, pack_quickly, validate};

#[test]
fn random_problems_are_packed_validly() {
    for seed in 0..400 {
        let problem = random_problem(seed, 40);
        let solution = pack(&problem, 0, 0);
        validate(&problem, &solution, None).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(solution.peak >= lower_bound(&problem).bytes, "seed {seed}");
    }
}

#[test]
fn tiny_problems_are_packed_almost_always_optimally() {
    let mut worse = Vec::new();
    for seed in 0..500 {
        let problem = random_problem(seed, 7);
        let (peak, least) = (pack(&problem, 0, 0).peak, least_peak(&problem));
        assert!(peak >= least, "seed {seed}: {peak} is below the optimum {least}");
        if peak > least {
            worse.push(seed);
        }
    }
    assert!(worse.len() <= 5, "not optimal: seeds {worse:?}");
}

#[test]
fn training_steps_are_packed_within_two_per_mille() {
    let (mut steps, mut over) = (0, Vec::new());
    for buffers in [60, 200, 600, 1_500] {
        for seed in 0..60 {
            let problem = training_step(seed, buffers);
            let bound = lower_bound(&problem).bytes;
            let solution = pack(&problem, 0, bound + bound / 2000);
            validate(&problem, &solution, None).unwrap_or_else(|e| panic!("seed {seed}, {buffers} buffers: {e}"));
            let ratio = solution.peak as f64 / bound as f64;
            steps += 1;
            if ratio > 1.002 {
                over.push((buffers, seed, ratio));
            }
        }
    }
    assert!(over.len() * 100 <= steps, "over 1.002 x the bound: {over:?} of {steps}");
}

#[test]
fn a_quick_packing_is_valid_and_pack_is_no_higher() {
    for seed in 0..40 {
        for problem in [training_step(seed, 600), random_problem(seed, 40)] {
            let bound = lower_bound(&problem).bytes;
            let [quick, full] = [pack_quickly(&problem, bound), pack(&problem, 0, bound)];
            validate(&problem, &quick, None).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            assert!(bound <= full.peak && full.peak <= quick.peak, "seed {seed}: {} {}", full.peak, quick.peak);
            assert_eq!(quick, pack_quickly(&problem, bound));
        }
    }
}

#[test]
fn the_same_problem_gives_the_same_bytes() {
    for seed in 0..10 {
        let problem = training_step(seed, 300);
        assert_eq!(pack(&problem, 0, 0), pack(&problem.clone(), 0, 0), "seed {seed}");
    }
}

#[test]
fn empty_buffers_are_at_offset_0() {
    let buffers = vec![Buffer::new(0, 9, 5), Buffer::new(4, 4, 7), Buffer::new(9, 2, 7), Buffer::new(0, 9, 0)];
    let problem = Problem { buffers, alignment: 4 };
    let solution = pack(&problem, 0, 0);
    assert_eq!((solution.offsets.as_slice(), solution.peak), ([0, 0, 0, 0].as_slice(), 8));
    assert_eq!(pack(&Problem { buffers: Vec::new(), alignment: 1 }, 0, 0).peak, 0);
}

#[test]
fn sizes_near_the_end_of_64_bits_do_not_overflow() {
    let quarter = u64::MAX / 4;
    let buffers = vec![Buffer::new(0, 3, quarter), Buffer::new(1, 4, quarter), Buffer::new(2, 5, quarter)];
    let problem = Problem { buffers, alignment: 1 };
    let solution = pack(&problem, 0, 0);
    assert_eq!(validate(&problem, &solution, None), Ok(()));
    assert_eq!(solution.peak, 3 * quarter);
}
