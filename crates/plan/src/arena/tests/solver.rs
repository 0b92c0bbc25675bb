//! The exact solver: never worse than the heuristics, right about what is possible, and able to pack what is full.

use super::brute::least_peak;
use super::cut::{CAPACITY, Cut, cut};
use super::random::random_problem;
use crate::arena::{Status, lower_bound, pack, read_csv, solve, validate};
use std::cell::Cell;

/// Stops after so many questions.
fn patience(questions: u64) -> impl FnMut() -> bool {
    let asked = Cell::new(0);
    move || {
        asked.set(asked.get() + 1);
        asked.get() > questions
    }
}

#[test]
fn tiny_problems_are_solved_to_the_optimum_that_brute_force_finds() {
    for seed in 0..500 {
        let problem = random_problem(seed, 7);
        let outcome = solve(&problem, None, &mut || false);
        validate(&problem, &outcome.solution, None).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let least = least_peak(&problem);
        assert_eq!((outcome.status, outcome.solution.peak), (Status::Optimal, least), "seed {seed}");
        if least > 0 {
            let refuted = solve(&problem, Some(least - 1), &mut || false);
            assert_eq!(refuted.status, Status::Infeasible, "seed {seed}");
            let met = solve(&problem, Some(least), &mut || false);
            assert!(met.solution.peak <= least && met.status != Status::Infeasible, "seed {seed}");
        }
    }
}

#[test]
fn rectangles_cut_to_pieces_are_put_together_again() {
    for (seed, pieces, pinwheels) in [(1, 40, 0), (2, 60, 50), (3, 80, 0), (4, 30, 100), (5, 100, 20)] {
        let problem = cut(seed, Cut { pieces, pinwheels, left_out: 0, shortened: 0, stretch: 1 });
        let outcome = solve(&problem, Some(CAPACITY), &mut patience(20_000));
        assert_ne!(outcome.status, Status::Infeasible, "seed {seed}: a packing is known to exist");
        assert_eq!(validate(&problem, &outcome.solution, Some(CAPACITY)), Ok(()), "seed {seed}: {:?}", outcome.status);
    }
}

#[test]
fn larger_problems_are_never_worse_than_the_heuristics_and_the_same_each_time() {
    for seed in 0..40 {
        let problem = random_problem(seed, 60);
        let outcome = solve(&problem, None, &mut patience(40));
        assert_eq!(validate(&problem, &outcome.solution, None), Ok(()), "seed {seed}");
        assert!(outcome.solution.peak <= pack(&problem).peak && outcome.solution.peak >= lower_bound(&problem).bytes);
        assert_eq!(outcome, solve(&problem, None, &mut patience(40)), "seed {seed}");
    }
}

/// The public benchmark's problems are not in the repository; the folder with them is named by the environment.
#[test]
fn the_public_benchmark_is_packed_within_its_capacity() {
    let Some(folder) = std::env::var_os("PLIMSOLL_MINIMALLOC_DIR") else {
        eprintln!("SKIPPED: PLIMSOLL_MINIMALLOC_DIR does not name a folder with minimalloc's *.1048576.csv");
        return;
    };
    let files = std::fs::read_dir(folder).expect("the folder can be read").flatten().map(|entry| entry.path());
    let problems = files.filter(|path| path.extension().is_some_and(|e| e == "csv")).collect::<Vec<_>>();
    assert!(!problems.is_empty(), "the folder has no problems");
    for path in problems {
        let problem = read_csv(&std::fs::read_to_string(&path).expect("text")).expect("a problem").problem;
        let outcome = solve(&problem, Some(1 << 20), &mut patience(1_000_000));
        assert_eq!(validate(&problem, &outcome.solution, Some(1 << 20)), Ok(()), "{}", path.display());
    }
}
