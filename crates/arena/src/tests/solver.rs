//! The exact solver against brute force, against packings that are known to exist, and on the public benchmark if its
//! files are available.

use super::brute::least_peak;
use super::cut::{CAPACITY, Cut, cut};
use super::random::{problem_near_a_gap, random_problem};
use super::training::training_step;
use crate::columns::Columns;
use crate::compress::Compressed;
use crate::search::{End, Search};
use crate::strategy::Strategy;
use crate::{Buffer, Outcome, Problem, Status, lower_bound, pack, read_csv, solve, validate};
use rayon::prelude::*;
use std::time::Instant;

/// Solves, and stops after `polls` calls of `stop`.
fn solve_for(problem: &Problem, capacity: Option<u64>, polls: u64) -> Outcome {
    let mut left = polls;
    solve(problem, capacity, &mut || {
        left = left.saturating_sub(1);
        left == 0
    })
}

#[test]
fn tiny_problems_are_solved_as_by_brute_force() {
    let is_gap = |seed| {
        let problem = if seed < 400 { random_problem(seed, 7) } else { problem_near_a_gap(seed) };
        let least = least_peak(&problem);
        let bound = lower_bound(&problem).bytes;
        let outcome = solve(&problem, None, &mut || false);
        assert_eq!((outcome.solution.peak, outcome.status), (least, Status::Optimal), "seed {seed}");
        assert_eq!(outcome.lower_bound, least, "seed {seed}");
        validate(&problem, &outcome.solution, Some(least)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));

        let met = solve(&problem, Some(least), &mut || false);
        assert_eq!(met.status, if least == bound { Status::Optimal } else { Status::Feasible }, "seed {seed}");
        validate(&problem, &met.solution, Some(least)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));

        if least > 0 {
            let refuted = solve(&problem, Some(least - 1), &mut || false);
            assert_eq!(refuted.status, Status::Infeasible, "seed {seed}");
            validate(&problem, &refuted.solution, None).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
        least > bound
    };
    let gaps = (0..1_000).into_par_iter().filter(|&seed| is_gap(seed)).count();
    assert!(gaps > 150, "only {gaps} problems needed a search");
}

/// For problems this small `solve` finishes with the first strategy, so the test runs each strategy directly.
#[test]
fn every_strategy_finds_and_refutes_as_brute_force_does() {
    for seed in 0..200 {
        let problem = problem_near_a_gap(seed);
        let least = least_peak(&problem);
        let compressed = Compressed::new(&problem);
        for run in 0..18 {
            let strategy = Strategy::new(&compressed, run);
            let mut search = Search::new(Columns::new(&compressed));
            let refuted = search.run(least - 1, &strategy, u64::MAX, &mut || false);
            assert_eq!(refuted, End::Refuted, "seed {seed}, run {run}");
            let found = search.run(least, &strategy, u64::MAX, &mut || false);
            assert_eq!(found, End::Found, "seed {seed}, run {run}");
            let solution = compressed.solution(&search.packing.offsets);
            validate(&problem, &solution, Some(least)).unwrap_or_else(|e| panic!("seed {seed}, run {run}: {e}"));
        }
    }
}

#[test]
fn random_problems_are_never_worse_than_packed() {
    for seed in 0..100 {
        let problem = random_problem(seed, 40);
        let outcome = solve_for(&problem, None, 20);
        validate(&problem, &outcome.solution, None).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(outcome.solution.peak <= pack(&problem, 0, 0).peak, "seed {seed}");
        assert!(outcome.solution.peak >= outcome.lower_bound, "seed {seed}");
        assert!(outcome.lower_bound >= lower_bound(&problem).bytes, "seed {seed}");
    }
}

#[test]
fn cut_rectangles_are_reassembled() {
    let easy = Cut { pieces: 50, pinwheels: 0, left_out: 0, shortened: 0, stretch: 1 };
    for how in [
        easy,
        Cut { pieces: 200, ..easy },
        Cut { pinwheels: 50, ..easy },
        Cut { pieces: 150, pinwheels: 50, ..easy },
        Cut { pinwheels: 20, left_out: 10, ..easy },
        Cut { pinwheels: 20, shortened: 10, ..easy },
        Cut { pinwheels: 20, left_out: 5, shortened: 5, stretch: 10, ..easy },
    ] {
        for seed in 0..8 {
            let problem = cut(seed, how);
            let outcome = solve_for(&problem, Some(CAPACITY), 10_000);
            validate(&problem, &outcome.solution, Some(CAPACITY))
                .unwrap_or_else(|e| panic!("seed {seed}, {how:?}: {e}"));
        }
    }
}

#[test]
fn training_steps_reach_the_bound() {
    for seed in 0..30 {
        let problem = training_step(seed, 150);
        let outcome = solve_for(&problem, None, 1_000);
        validate(&problem, &outcome.solution, None).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(outcome.solution.peak, lower_bound(&problem).bytes, "seed {seed}: {:?}", outcome.status);
    }
}

#[test]
fn the_same_problem_gives_the_same_outcome() {
    let how = Cut { pieces: 80, pinwheels: 20, left_out: 5, shortened: 5, stretch: 1 };
    for seed in 0..5 {
        let problem = cut(seed, how);
        assert_eq!(solve_for(&problem, None, 50), solve_for(&problem.clone(), None, 50), "seed {seed}");
    }
}

#[test]
fn an_immediate_stop_still_gives_a_packing() {
    let problem = cut(3, Cut { pieces: 200, pinwheels: 20, left_out: 5, shortened: 5, stretch: 1 });
    let outcome = solve_for(&problem, Some(CAPACITY), 1);
    assert_eq!(outcome.status, Status::Stopped);
    assert_eq!(validate(&problem, &outcome.solution, None), Ok(()));
    assert_eq!(solve_for(&problem, None, 1).status, Status::Feasible);
}

#[test]
fn a_capacity_counts_in_whole_units_of_the_alignment() {
    let problem = Problem { buffers: vec![Buffer::new(0, 2, 100), Buffer::new(1, 3, 10)], alignment: 64 };
    assert_eq!(solve(&problem, Some(255), &mut || false).status, Status::Optimal);
    assert_eq!(solve(&problem, Some(191), &mut || false).status, Status::Infeasible);
}

/// The public benchmark's problems are not in the repository; an environment variable names a folder with them.
#[test]
fn the_public_benchmark_is_packed_within_its_capacity() {
    let Some(folder) = std::env::var_os("PLIMSOLL_MINIMALLOC_DIR") else {
        eprintln!("SKIPPED: PLIMSOLL_MINIMALLOC_DIR does not name a folder with minimalloc's *.1048576.csv");
        return;
    };
    let files = std::fs::read_dir(&folder).expect("the folder can be read").flatten().map(|entry| entry.path());
    let mut paths: Vec<_> = files.filter(|path| path.extension().is_some_and(|e| e == "csv")).collect();
    paths.sort();
    assert!(!paths.is_empty(), "the folder has no problems");
    for path in paths {
        let problem = read_csv(&std::fs::read_to_string(&path).expect("text")).expect("a problem").problem;
        let start = Instant::now();
        let outcome = solve_for(&problem, Some(CAPACITY), 100_000);
        let (name, ms) = (path.display(), start.elapsed().as_secs_f64() * 1e3);
        println!("{name}: {:?} in {} steps, {ms:.1} ms", outcome.status, outcome.steps);
        validate(&problem, &outcome.solution, Some(CAPACITY)).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}
