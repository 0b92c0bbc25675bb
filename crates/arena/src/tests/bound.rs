//! The lower bound against a slow computation of its definition.

use super::random::random_problem;
use super::training::training_step;
use crate::compress::Compressed;
use crate::{Buffer, LowerBound, Problem, lower_bound};

/// Live bytes at `time`, by the definition.
fn live(problem: &Problem, time: u64) -> u64 {
    let live = problem.buffers.iter().filter(|b| b.lifespan.lower <= time && time < b.lifespan.upper);
    live.map(|b| b.size.div_ceil(problem.alignment) * problem.alignment).sum()
}

#[test]
fn is_the_largest_sum_of_live_bytes() {
    for seed in 0..300 {
        let problem = random_problem(seed, 30);
        let bound = lower_bound(&problem);
        let times = problem.buffers.iter().map(|b| b.lifespan.lower);
        let most = times.clone().map(|time| live(&problem, time)).max().unwrap_or(0);
        assert_eq!(bound.bytes, most, "seed {seed}");
        let first = times.filter(|&time| live(&problem, time) == most).min();
        assert_eq!(bound.at, if most == 0 { 0 } else { first.unwrap() }, "seed {seed}");
    }
}

#[test]
fn is_the_load_of_a_column() {
    for seed in 0..20 {
        let problem = training_step(seed, 300);
        let compressed = Compressed::new(&problem);
        assert_eq!(compressed.bound() * problem.alignment, lower_bound(&problem).bytes, "seed {seed}");
    }
}

#[test]
fn touching_lifespans_do_not_add_up() {
    let problem = Problem { buffers: vec![Buffer::new(0, 5, 3), Buffer::new(5, 9, 4)], alignment: 1 };
    assert_eq!(lower_bound(&problem), LowerBound { bytes: 4, at: 5 });
}

#[test]
fn sizes_count_rounded_up() {
    let problem = Problem { buffers: vec![Buffer::new(0, 5, 1), Buffer::new(4, 9, 257)], alignment: 256 };
    assert_eq!(lower_bound(&problem), LowerBound { bytes: 768, at: 4 });
}

#[test]
fn an_empty_problem_has_bound_0() {
    let problem = Problem { buffers: vec![Buffer::new(3, 3, 8), Buffer::new(1, 9, 0)], alignment: 16 };
    assert_eq!(lower_bound(&problem), LowerBound { bytes: 0, at: 0 });
}

#[test]
#[should_panic(expected = "2 buffers aligned to 256 bytes add up to more than 64 bits")]
fn a_total_of_more_than_64_bits_panics() {
    let buffers = vec![Buffer::new(0, 5, u64::MAX / 2), Buffer::new(7, 9, u64::MAX / 2 + 1)];
    lower_bound(&Problem { buffers, alignment: 256 });
}
