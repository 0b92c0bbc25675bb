//! A run that ends because the system refuses it memory: Rust aborts the process at whichever allocation that is. Nothing is
//! cleaned up then, and the run continues from its newest checkpoint with equal bits.

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

/// The system's memory, of which the allocation is refused that `LEFT` counts down to.
struct Refusing;

static LEFT: AtomicI64 = AtomicI64::new(i64::MAX);
static MADE: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is the system allocator's own, or gives no memory, which an allocator may do.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        MADE.fetch_add(1, Ordering::Relaxed);
        match LEFT.fetch_sub(1, Ordering::Relaxed) {
            0 => std::ptr::null_mut(),
            // SAFETY: the caller's promise.
            _ => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise; all memory is the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static HEAP: Refusing = Refusing;

/// In the child: which allocation of the run is refused, and in which folder it runs.
const REFUSED: &str = "PLIMSOLL_TEST_REFUSED";
const FOLDER: &str = "PLIMSOLL_TEST_FOLDER";

/// Runs that are aborted.
const ABORTS: u64 = 12;

const SIGABRT: i32 = 6;

fn setup() -> Setup {
    Setup { checkpoint_every: Some(2), keep_checkpoints: 2, ..Setup::default() }
}

/// Starts the run in a folder, or resumes it from its newest checkpoint.
fn go_on(run: &Path) -> Vec<Option<f64>> {
    let found = run.exists().then(|| newest_whole(&run.join("checkpoints")).expect("readable").found).flatten();
    match found {
        Some((checkpoint, _)) => setup().run(run, &Start::Resume(checkpoint), |_: &_, _: &_| {}).1.losses,
        None => {
            // As a person would who finds no checkpoint.
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
fn a_run_that_is_refused_memory_anywhere_continues_from_its_checkpoint_with_equal_bits() {
    if let (Ok(refused), Some(folder)) = (std::env::var(REFUSED), std::env::var_os(FOLDER)) {
        LEFT.store(refused.parse().expect("a number"), Ordering::Relaxed);
        go_on(Path::new(&folder));
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let whole = folder.path().join("whole");
    let before = MADE.load(Ordering::Relaxed);
    let losses = go_on(&whole);
    let made = MADE.load(Ordering::Relaxed) - before;
    let mut resumed = 0;
    for abort in 0..ABORTS {
        let run = folder.path().join(abort.to_string());
        let mut child = Command::new(std::env::current_exe().expect("this test"));
        child.env(REFUSED, (made * (2 * abort + 1) / (2 * ABORTS)).to_string()).env(FOLDER, &run);
        let status = child.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("it runs");
        assert_eq!(status.signal(), Some(SIGABRT), "abort {abort}: {status}");
        let has_saved = newest_whole(&run.join("checkpoints")).is_ok_and(|newest| newest.found.is_some());
        resumed += u64::from(has_saved);
        assert_eq!(go_on(&run), losses, "abort {abort}");
        assert!(weights(&run) == weights(&whole), "abort {abort}: other weights");
    }
    assert!(resumed > ABORTS / 4, "only {resumed} were aborted after a checkpoint");
}
