//! Simulates whole runs: one seed replays everything that happens to one, on the disk, to signals and orders, the clock, the
//! temperature, the free memory and the card, to the bit. `SIMULATION_SEEDS=17`, `SIMULATION_SEEDS=0..100000` choose seeds.

mod card;
mod checks;
mod disk;
mod facts;
mod files;
#[path = "../../../heat/tests/simulated/rng.rs"]
mod rng;
mod schedule;
mod simulation;
mod training;
mod world;

use simulation::{Survived, simulate};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds unless the environment names others.
const SEEDS: Range<u64> = 0..1000;

/// Further seeds, each of which found a defect.
const FOUND: [u64; 1] = [0x1141d];

/// The variable that names seeds.
const VARIABLE: &str = "SIMULATION_SEEDS";

/// What must happen in some of the seeds, by words of its line in a trace. Otherwise the simulation has lost its faults.
const KINDS: [(&str, &str); 21] = [
    ("power cuts", " s  Power before operation"),
    ("kills", " s  Kill before operation"),
    ("failed file operations", " of operation "),
    ("checkpoints that failed", "CheckpointFailed {"),
    ("lost events", "EventsLost {"),
    ("resumed sessions", "Resumed {"),
    ("pauses", "Unpaused {"),
    ("stops by a user", "Interrupted {"),
    ("stops for heat", "StoppedForHeat {"),
    ("slowdowns and pauses for heat", "slowed to "),
    ("sensors that fail", "tells no temperature any more"),
    ("other plans", "Replanned {"),
    ("plans that take over the state", "a plan takes over the state"),
    ("waits for memory", "waits: true"),
    ("refused orders", "OrderRefused {"),
    ("refused loads", " is refused, "),
    ("launches that fail", "Launch of program"),
    ("cards that are lost", "Lost of program"),
    ("sleeps", " s  Sleep("),
    ("clocks that are set", " s  SetClock("),
    ("orders that are no orders", " s  Garbage"),
];

/// How many traces have each kind.
fn count_kinds(survived: &[Survived]) -> Vec<(&'static str, usize)> {
    let has = |run: &Survived, words: &str| run.trace.iter().any(|line| line.contains(words));
    KINDS.iter().map(|(kind, words)| (*kind, survived.iter().filter(|run| has(run, words)).count())).collect()
}

/// A folder whose files are in memory, if the system has one.
fn parent() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

/// A number, or two with `..` between them.
fn seeds_of(text: &str) -> Option<Range<u64>> {
    let number = |text: &str| match text.trim().strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.trim().parse().ok(),
    };
    match text.split_once("..") {
        Some((from, to)) => Some(number(from)?..number(to)?),
        None => number(text).map(|seed| seed..seed + 1),
    }
}

fn seeds(others: Range<u64>) -> Range<u64> {
    match std::env::var(VARIABLE) {
        Ok(text) => {
            seeds_of(&text).unwrap_or_else(|| panic!("{VARIABLE} is not like `17`, `0x11` or `0..1000`: {text}"))
        }
        Err(_) => others,
    }
}

/// Simulates seeds on all cores. Prints each failure with its seed and the command that replays it. Returns what the others
/// went through.
fn simulate_all(seeds: &Range<u64>) -> (Vec<Survived>, u64) {
    let (next, failures) = (AtomicU64::new(seeds.start), AtomicU64::new(0));
    let survived = Mutex::new(vec![]);
    let (parent, is_single) = (parent(), seeds.end - seeds.start == 1);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            match simulate(seed, &parent) {
                Ok(run) => {
                    if is_single {
                        println!("{}", run.trace.join("\n"));
                    }
                    survived.lock().expect("no panic").push(run);
                }
                Err(failure) => {
                    failures.fetch_add(1, Ordering::Relaxed);
                    println!(
                        "{}\nseed {seed:#x}: {}\nreplay: {VARIABLE}={seed:#x} cargo test --workspace --test simulation -- \
                         --nocapture faults\n",
                        failure.trace.join("\n"),
                        failure.what
                    );
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    (survived.into_inner().expect("no panic"), failures.into_inner())
}

#[test]
fn a_run_survives_the_faults_of_every_seed() {
    let seeds = seeds(SEEDS);
    let (survived, failures) = simulate_all(&seeds);
    assert_eq!(failures, 0, "seeds of {seeds:?} failed; each is printed above with its command");
    if seeds == SEEDS {
        let finished = survived.iter().filter(|run| run.is_finished).count();
        let restarted = survived.iter().filter(|run| run.sessions > 1).count();
        assert!(
            finished > 900 && restarted > 300,
            "{finished} finished, {restarted} restarted: too few faults or too many"
        );
        let kinds = count_kinds(&survived);
        assert!(kinds.iter().all(|(_, count)| *count >= 5), "{kinds:?}");
    }
}

#[test]
fn a_run_survives_the_faults_that_found_defects() {
    for seed in FOUND {
        let survived = simulate(seed, &parent()).map_err(|failure| failure.what);
        assert!(survived.is_ok(), "seed {seed:#x}: {survived:?}");
    }
}

#[test]
fn a_seed_replays_the_same_run_to_the_bit() {
    for seed in 0..20 {
        let [first, second] = [0, 1].map(|_| simulate(seed, &parent()).map_err(|failure| failure.what));
        assert_eq!(first, second, "seed {seed:#x}");
    }
}

#[test]
fn seeds_are_named_by_numbers_and_ranges() {
    assert_eq!(["17", "0x11", "3..5", "x"].map(seeds_of), [Some(17..18), Some(17..18), Some(3..5), None]);
}

/// Produces the figures of `bench/results/reliability.md`.
#[test]
#[ignore = "evidence at scale: `cargo test --release --workspace --test simulation -- --ignored --nocapture evidence`"]
fn evidence_of_simulation() {
    let seeds = seeds(0..100_000);
    let (survived, failures) = simulate_all(&seeds);
    let finished = survived.iter().filter(|run| run.is_finished).count();
    let sessions = survived.iter().map(|run| u64::from(run.sessions)).sum::<u64>();
    let hours = survived.iter().map(|run| run.simulated_s).sum::<f64>() / 3600.0;
    println!(
        "evidence: {} seeds, {finished} runs finished, {sessions} sessions, {hours:.0} simulated hours, {failures} failed",
        seeds.end - seeds.start
    );
    println!("runs with each kind of event: {:?}", count_kinds(&survived));
    assert_eq!(failures, 0);
}
