//! Branches: a run that is resumed from an older checkpoint permanently abandons later steps, and its losses are those
//! of the steps that led to its state.

use crate::support::{Outcome, Setup, all_losses, bits};
use plimsoll_files::{Disk, Operation, Watch};
use plimsoll_telemetry::{BRANCHES_FILE, Event};
use plimsoll_train::Start;
use plimsoll_train::checkpoint::{CheckpointError, list, newest_whole};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// A run that saves and evaluates after every step. Its learning rates depend on its number of steps.
fn run_of(steps: u64) -> Setup {
    Setup { steps, checkpoint_every: Some(1), eval_every: Some(1), ..Setup::default() }
}

fn checkpoint(run: &Path, step: u64) -> PathBuf {
    run.join(format!("checkpoints/step-{step:06}"))
}

/// Runs a session; returns its outcome and, if it started a branch, the step before it and the abandoned checkpoints.
fn session(setup: &Setup, run: &Path, start: &Start) -> (Outcome, Option<(u64, Vec<PathBuf>)>) {
    let branched = Mutex::new(None);
    let outcome = setup.run(run, start, |event: &Event, _: &AtomicBool| {
        if let Event::Branched { from_step, left_behind } = event {
            *branched.lock().expect("no other panic") = Some((*from_step, left_behind.clone()));
        }
    });
    (outcome, branched.into_inner().expect("no other panic"))
}

/// The newest checkpoint's step and branch, and the abandoned checkpoints.
fn newest(run: &Path) -> (u64, u64, Vec<PathBuf>) {
    let newest = newest_whole(&run.join("checkpoints")).expect("a folder that can be read");
    let (_, state) = newest.found.expect("a whole checkpoint");
    assert_eq!(newest.skipped, []);
    (state.step, state.branch, newest.left_behind)
}

fn held_out(outcome: &Outcome) -> Vec<(u64, u64)> {
    outcome.1.eval.iter().map(|e| (e.step, e.loss.to_bits())).collect()
}

#[test]
fn the_newest_branch_is_resumed_with_its_own_losses() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let run = parent.path().join("run");
    let paths = |steps: &[u64]| steps.iter().map(|&step| checkpoint(&run, step)).collect::<Vec<_>>();

    let (first, branched) = session(&run_of(9), &run, &Start::Fresh);
    assert_eq!((branched, newest(&run)), (None, (9, 0, vec![])));
    let first_losses = bits(&all_losses(&first.1, 9));

    let (second, branched) = session(&run_of(7), &run, &Start::Resume(checkpoint(&run, 4)));
    assert_eq!(branched, Some((4, paths(&[9, 8, 7, 6, 5]))));
    assert_eq!(newest(&run), (7, 1, paths(&[9, 8])), "the branch begun last counts, not the latest step");
    let second_losses = bits(&all_losses(&second.1, 7));
    assert_eq!((second.1.branch, &second_losses[..4]), (1, &first_losses[..4]));
    assert_ne!(second_losses[6], first_losses[6], "another learning rate");

    // Resuming the newest starts no branch.
    let (third, branched) = session(&run_of(8), &run, &Start::Resume(checkpoint(&run, 7)));
    assert_eq!((branched, newest(&run)), (None, (8, 1, paths(&[9]))));
    assert_eq!(bits(&all_losses(&third.1, 8))[..7], second_losses);

    // Back to the abandoned branch: its losses, and none of the other's.
    let (fourth, branched) = session(&run_of(10), &run, &Start::Resume(checkpoint(&run, 9)));
    assert_eq!(branched, Some((9, vec![])));
    assert_eq!(newest(&run), (10, 2, vec![]));
    assert_eq!(bits(&all_losses(&fourth.1, 10))[..9], first_losses);
    assert_eq!(held_out(&fourth)[..9], held_out(&first)[..9]);
}

/// A disk without space for checkpoints.
#[derive(Debug)]
struct NoCheckpoints;

impl Watch for NoCheckpoints {
    fn before(&self, operation: Operation<'_>) -> io::Result<()> {
        let is_checkpoint = |path: &Path| path.to_string_lossy().contains(".writing-step-");
        match operation {
            Operation::CreateFolder(path) if is_checkpoint(path) => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }
}

/// Like after a kill before its first checkpoint: the branch is recorded, and continues from where it started.
#[test]
fn a_branch_without_checkpoints_continues_from_its_start() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let run = parent.path().join("run");
    session(&run_of(5), &run, &Start::Fresh);
    let outcome = run_of(4).run_on(
        Disk::watched(Arc::new(NoCheckpoints)),
        &run,
        &Start::Resume(checkpoint(&run, 3)),
        |_: &_, _: &_| {},
    );
    let outcome = outcome.expect("a session without an error");
    assert_eq!(outcome.saved, Some((3, checkpoint(&run, 3))));
    assert!(outcome.unsaved.is_some() && outcome.report.status == "unsaved");
    assert_eq!(newest(&run), (3, 0, vec![checkpoint(&run, 5), checkpoint(&run, 4)]));
    let (_, branched) = session(&run_of(4), &run, &Start::Resume(checkpoint(&run, 3)));
    assert_eq!((branched, newest(&run).1), (None, 1), "it is not another branch");
}

/// Checkpoints of abandoned branches neither count toward the limit nor are deleted.
#[test]
fn abandoned_checkpoints_are_not_deleted() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let run = parent.path().join("run");
    let every_two = Setup { checkpoint_every: Some(2), ..run_of(6) };
    session(&every_two, &run, &Start::Fresh);
    let every_three = Setup { checkpoint_every: Some(3), keep_checkpoints: 1, ..run_of(5) };
    session(&every_three, &run, &Start::Resume(checkpoint(&run, 2)));
    let steps = list(&run.join("checkpoints")).expect("a folder").into_iter().map(|(step, _)| step);
    assert_eq!(steps.collect::<Vec<_>>(), [6, 5, 4], "5 is the branch's; 4 and 6 are abandoned");
}

#[test]
fn unreadable_branches_are_an_error() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let run = parent.path().join("run");
    session(&run_of(2), &run, &Start::Fresh);
    fs::write(run.join("checkpoints").join(BRANCHES_FILE), "{").expect("written");
    let error = newest_whole(&run.join("checkpoints")).unwrap_err();
    assert!(matches!(error, CheckpointError::Damaged { .. }), "{error}");
}
