//! A run that is aborted because the system refuses an allocation. Nothing is cleaned up, and the run continues from
//! its newest checkpoint with identical bits.

#![cfg(unix)]

mod support;

use plimsoll_train::Start;
use plimsoll_train::checkpoint::newest_whole;
use std::alloc::{GlobalAlloc, Layout, System};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use support::Setup;

/// The system's allocator; refuses the allocation at which `LEFT` reaches zero.
struct Refusing;

static LEFT: AtomicI64 = AtomicI64::new(i64::MAX);
static MADE: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system allocator, or returns no memory, as an allocator may.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        MADE.fetch_add(1, Ordering::Relaxed);
        match LEFT.fetch_sub(1, Ordering::Relaxed) {
            0 => std::ptr::null_mut(),
            // SAFETY: upheld by the caller.
            _ => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: upheld by the caller; all memory comes from the system allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static HEAP: Refusing = Refusing;

/// For the child process: which allocation of the run to refuse, and the run's folder.
const REFUSED: &str = "PLIMSOLL_TEST_REFUSED";
const FOLDER: &str = "PLIMSOLL_TEST_FOLDER";

const SIGABRT: i32 = 6;

fn setup() -> Setup {
    Setup { checkpoint_every: Some(2), keep_checkpoints: 2, ..Setup::default() }
}

/// Starts the run in a folder, or resumes it from its newest checkpoint.
fn start_or_resume(run: &Path) -> Vec<Option<f64>> {
    let found = run.exists().then(|| newest_whole(&run.join("checkpoints")).expect("readable").found).flatten();
    match found {
        Some((checkpoint, _)) => setup().run(run, &Start::Resume(checkpoint), |_: &_, _: &_| {}).1.losses,
        None => {
            // Without a checkpoint, starts over.
            let _ = std::fs::remove_dir_all(run);
            setup().run(run, &Start::Fresh, |_: &_, _: &_| {}).1.losses
        }
    }
}

fn weights(run: &Path) -> Vec<u8> {
    let step = setup().steps;
    std::fs::read(run.join(format!("checkpoints/step-{step:06}/model.safetensors"))).expect("the last checkpoint")
}

#[test]
fn a_run_aborted_at_any_allocation_continues_with_identical_bits() {
    if let (Ok(refused), Some(folder)) = (std::env::var(REFUSED), std::env::var_os(FOLDER)) {
        LEFT.store(refused.parse().expect("a number"), Ordering::Relaxed);
        start_or_resume(Path::new(&folder));
        return;
    }
    abort_runs(12);
}

/// Produces the figure of `bench/results/reliability.md`.
#[test]
#[ignore = "evidence at scale, minutes: `python3 bench/reliability.py --only memory`"]
fn evidence_of_aborts() {
    abort_runs(1_200);
}

/// Aborts runs at this many allocations, spread evenly over all of a run.
fn abort_runs(aborts: u64) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let whole = folder.path().join("whole");
    let before = MADE.load(Ordering::Relaxed);
    let losses = start_or_resume(&whole);
    let made = MADE.load(Ordering::Relaxed) - before;
    println!("evidence: {aborts} of {made} allocations");
    let mut resumed = 0;
    for abort in 0..aborts {
        let run = folder.path().join(abort.to_string());
        let mut child = Command::new(std::env::current_exe().expect("this test"));
        child.env(REFUSED, (made * (2 * abort + 1) / (2 * aborts)).to_string()).env(FOLDER, &run);
        let status = child.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("it runs");
        assert_eq!(status.signal(), Some(SIGABRT), "abort {abort}: {status}");
        let has_saved = newest_whole(&run.join("checkpoints")).is_ok_and(|newest| newest.found.is_some());
        resumed += u64::from(has_saved);
        assert_eq!(start_or_resume(&run), losses, "abort {abort}");
        assert!(weights(&run) == weights(&whole), "abort {abort}: other weights");
        std::fs::remove_dir_all(&run).expect("it is there");
    }
    assert!(resumed > aborts / 4, "only {resumed} were aborted after a checkpoint");
}
