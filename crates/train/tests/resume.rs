//! A resumed run is the run: it gives the bits of one that was never stopped.

mod support;

use graph::TrainShape;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use support::{Outcome, Setup, View, all_losses, bits};
use telemetry::{Event, read_journal};
use train::checkpoint::{CheckpointError, MODEL_FILE, OPTIMIZER_FILE, list};
use train::{Ending, Start, TrainError};

/// Asks to stop after a step; the last step of all is none.
fn stop_after(last: u64) -> impl View {
    move |event: &Event, stop: &AtomicBool| {
        if matches!(event, Event::Step { step, .. } if *step == last) {
            stop.store(true, Ordering::Relaxed);
        }
    }
}

/// A run in sessions that are stopped after these steps, each resumed from the newest checkpoint of the one before.
fn run_with_stops(setup: &Setup, folder: &Path, stops: &[u64]) -> Outcome {
    let mut start = Start::Fresh;
    for &step in stops {
        let (ending, report, checkpoint) = setup.run(folder, &start, stop_after(step));
        assert_eq!((ending, report.status.as_str()), (Ending::Interrupted, "interrupted"));
        assert_eq!(report.losses.len() as u64, step);
        start = Start::Resume(checkpoint.expect("an interrupted run saves a checkpoint"));
    }
    setup.run(folder, &start, stop_after(u64::MAX))
}

/// Panics unless two runs that ended have the same bits in their reports and in their last checkpoints.
fn assert_same_run(what: &str, setup: &Setup, found: &Outcome, expected: &Outcome) {
    let losses = |outcome: &Outcome| bits(&all_losses(&outcome.1, setup.steps));
    let held_out = |outcome: &Outcome| outcome.1.eval.iter().map(|e| (e.step, e.loss.to_bits())).collect::<Vec<_>>();
    assert_eq!((found.0, expected.0), (Ending::Finished, Ending::Finished), "{what}");
    assert_eq!(losses(found), losses(expected), "losses, {what}");
    assert_eq!(held_out(found), held_out(expected), "held-out losses, {what}");
    assert_eq!(found.1.tokens_seen, expected.1.tokens_seen, "{what}");
    for file in [MODEL_FILE, OPTIMIZER_FILE] {
        let contents = |outcome: &Outcome| fs::read(last_checkpoint(outcome).join(file)).expect("a whole checkpoint");
        assert!(contents(found) == contents(expected), "{file} differs, {what}");
    }
}

fn last_checkpoint(outcome: &Outcome) -> &PathBuf {
    outcome.2.as_ref().expect("a run that ended has a checkpoint")
}

#[test]
fn invariant_7_a_resumed_run_is_the_run() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let setup = Setup::default();
    assert!(setup.model.attn_pdrop > 0.0 && setup.eval_every == Some(4));
    let whole = run_with_stops(&setup, &parent.path().join("whole"), &[]);
    assert_eq!(whole.1.eval.iter().map(|e| e.step).collect::<Vec<_>>(), [4, 8, 12]);
    for stops in [&[5][..], &[1], &[4], &[11], &[2, 3, 9]] {
        let what = format!("stopped after {stops:?}");
        let outcome = run_with_stops(&setup, &parent.path().join(&what), stops);
        assert_same_run(&what, &setup, &outcome, &whole);
    }
}

/// As after a power cut: steps were made after the last checkpoint, and the journal remembers them.
#[test]
fn invariant_7_a_run_resumed_from_an_older_checkpoint_is_the_run() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let setup = Setup { checkpoint_every: Some(2), ..Setup::default() };
    let whole = run_with_stops(&setup, &parent.path().join("whole"), &[]);
    let folder = parent.path().join("cut");
    setup.run(&folder, &Start::Fresh, stop_after(9));
    let journal = folder.join("journal.jsonl");
    let torn = fs::read(&journal).expect("a journal");
    fs::write(&journal, &torn[..torn.len() - 9]).expect("written");
    for (step, checkpoint) in list(&folder.join("checkpoints")) {
        let what = format!("resumed from step {step}");
        let outcome = setup.run(&folder, &Start::Resume(checkpoint), stop_after(u64::MAX));
        assert_same_run(&what, &setup, &outcome, &whole);
    }
    let resumed = read_journal(&folder.join("journal.jsonl")).expect("a journal").into_iter().filter_map(|record| {
        let Event::Resumed { step, .. } = record.event else { return None };
        Some(step)
    });
    assert_eq!(resumed.collect::<Vec<_>>(), [9, 8, 6, 4, 2]);
}

#[test]
fn another_run_is_not_resumed() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let folder = parent.path().join("run");
    let setup = Setup::default();
    let start = Start::Resume(last_checkpoint(&setup.run(&folder, &Start::Fresh, stop_after(1))).clone());
    let shorter = TrainShape { seq_len: 8, ..setup.shape };
    for (expected, other) in [
        ("data", Setup { text_seed: 2, ..setup.clone() }),
        ("a seed of", Setup { seed: 8, ..setup.clone() }),
        ("a global batch of", Setup { global_batch: 16, ..setup.clone() }),
        ("a sequence length of", Setup { shape: shorter, ..setup.clone() }),
    ] {
        match other.try_run(&folder, &start, stop_after(u64::MAX)) {
            Err(TrainError::Checkpoint(CheckpointError::OtherRun { what, .. })) => assert_eq!(what, expected),
            result => panic!("{expected}: {result:?}"),
        }
    }
    assert_eq!(setup.run(&folder, &start, stop_after(u64::MAX)).0, Ending::Finished);
}

#[test]
fn losses_that_the_journal_lost_are_null() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let folder = parent.path().join("run");
    let setup = Setup::default();
    let start = Start::Resume(last_checkpoint(&setup.run(&folder, &Start::Fresh, stop_after(3))).clone());
    let journal = folder.join("journal.jsonl");
    let text = fs::read_to_string(&journal).expect("a journal");
    let damaged = text.replace("\"event\":\"step\",\"step\":2", "\"event\":\"step\",\"step\":");
    assert_ne!(text, damaged);
    fs::write(&journal, damaged).expect("written");
    let losses = setup.run(&folder, &start, stop_after(u64::MAX)).1.losses;
    let lost = (1..=losses.len()).filter(|step| losses[step - 1].is_none()).collect::<Vec<_>>();
    assert_eq!((lost, losses.len()), (vec![2], 12));
}
