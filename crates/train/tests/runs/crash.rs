//! Power cuts: no state that a cut can leave loses a checkpoint that was reported.

use crate::power::{Cuts, Folders, SETTINGS};
use crate::support::Setup;
use plimsoll_fake_disk::{Model, Recorded, Recorder};
use plimsoll_files::{Disk, Operation, Watch};
use plimsoll_telemetry::Event;
use plimsoll_train::checkpoint::newest_whole;
use plimsoll_train::{Ending, Start};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::{fs, io};

/// Records a session like the program runs it: settings are written when the start was accepted.
fn record(setup: &Setup, recorder: &Arc<Recorder>, folder: &Path, start: &Start) {
    let disk = Disk::watched(recorder.clone());
    let view = |event: &Event, _: &AtomicBool| match event {
        Event::RunStarted { .. } => disk.replace(&folder.join("config.yaml"), SETTINGS).expect("settings"),
        Event::CheckpointSaved { step, .. } => recorder.push(Recorded::Promised(*step)),
        _ => {}
    };
    let outcome = setup.run_on(disk.clone(), folder, start, view).expect("a session without an error");
    assert_eq!((outcome.ending, outcome.unsaved), (Ending::Finished, None));
}

/// A run that saves every step, and its second session, which resumes from a step before its last and starts a branch.
fn a_run_with_a_branch(setup: &Setup, few: usize) -> Cuts {
    let folders = Folders::new();
    let recorder = Arc::new(Recorder::default());
    let run = folders.disk.join("run");
    record(setup, &recorder, &run, &Start::Fresh);
    let (mut cuts, mut model) = (Cuts::default(), Model::new(&folders.disk));
    cuts.take(&folders, &mut model, &recorder.take(), None, few);
    let from = setup.steps - 1;
    let start = Start::Resume(run.join(format!("checkpoints/step-{from:06}")));
    record(&Setup { steps: setup.steps + 1, ..setup.clone() }, &recorder, &run, &start);
    // The branch replaces the run's newest checkpoint, so the promise before it started is the older step.
    cuts.take(&folders, &mut model, &recorder.take(), Some(from), few);
    cuts
}

fn saves_every_step() -> Setup {
    Setup { steps: 3, checkpoint_every: Some(1), eval_every: Some(2), keep_checkpoints: 2, ..Setup::default() }
}

#[test]
fn invariant_7_no_power_cut_loses_a_checkpoint_or_a_loss_that_one_counts_on() {
    let cuts = a_run_with_a_branch(&saves_every_step(), 5);
    println!("evidence: {} different states (of {})", cuts.looked_at.len(), cuts.states);
    assert!(cuts.looked_at.len() > 300, "only {} states", cuts.looked_at.len());
}

/// A run is cut off and resumed, and that session is cut off too: everything on disk before survives, in every state
/// after the first cut.
#[test]
fn invariant_7_no_power_cut_while_a_run_is_resumed_loses_a_saved_step() {
    let count = recoveries(&saves_every_step(), 5, 503);
    println!("evidence: {count} different states while a cut run is resumed");
    assert!(count > 30, "only {count} states");
}

/// Resumes every `stride`-th state of a run after a cut, with a cut following each operation. Returns the number of
/// different states.
fn recoveries(setup: &Setup, few: usize, stride: usize) -> usize {
    let mut count = 0;
    for (promised, tree) in a_run_with_a_branch(setup, few).trees.into_iter().step_by(stride) {
        let folders = Folders::new();
        for (path, file) in &tree {
            let path = folders.disk.join(path);
            match file {
                Some(bytes) => fs::write(path, bytes).expect("written"),
                None => fs::create_dir_all(path).expect("a new folder"),
            }
        }
        let run = folders.disk.join("run");
        let newest = newest_whole(&run.join("checkpoints")).expect("it was looked at").found;
        let start = newest.map_or(Start::Fresh, |(path, _)| Start::Resume(path));
        if start == Start::Fresh && run.exists() {
            // Like `--resume auto` if nothing was saved.
            continue;
        }
        let recorder = Arc::new(Recorder::default());
        record(&Setup { steps: setup.steps + 2, ..setup.clone() }, &recorder, &run, &start);
        let mut cuts = Cuts::default();
        cuts.take(&folders, &mut Model::of(&folders.disk, &tree), &recorder.take(), promised, few);
        count += cuts.looked_at.len();
    }
    count
}

/// Counts syncs of the folder of checkpoints, and may refuse the first one.
#[derive(Debug)]
struct Names {
    is_refused: bool,
    synced: AtomicUsize,
}

impl Watch for Names {
    fn before(&self, operation: Operation<'_>) -> io::Result<()> {
        let is_it = matches!(operation, Operation::SyncFolder(path) if path.ends_with("checkpoints"));
        if is_it && self.synced.fetch_add(1, Ordering::Relaxed) == 0 && self.is_refused {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

/// A process that is killed between the rename and the sync leaves a checkpoint that a power cut may still remove.
#[test]
fn invariant_7_a_resumed_checkpoint_is_made_durable_or_saved_again() {
    let (setup, folder) = (saves_every_step(), tempfile::tempdir().expect("a temporary folder"));
    let run = folder.path().join("run");
    let (_, _, checkpoint) = setup.run(&run, &Start::Fresh, |_: &_, _: &_| {});
    let start = Start::Resume(checkpoint.expect("a checkpoint"));
    for (is_refused, expected) in [(false, 0), (true, 1)] {
        let names = Arc::new(Names { is_refused, synced: AtomicUsize::new(0) });
        let saved = AtomicUsize::new(0);
        let view = |event: &Event, _: &AtomicBool| {
            let is_it = matches!(event, Event::CheckpointSaved { step: 3, .. });
            saved.fetch_add(usize::from(is_it), Ordering::Relaxed);
        };
        let outcome =
            setup.run_on(Disk::watched(names.clone()), &run, &start, view).expect("a session without an error");
        assert_eq!((outcome.ending, outcome.saved.map(|(step, _)| step)), (Ending::Finished, Some(3)));
        assert!(names.synced.load(Ordering::Relaxed) > 0, "its name was not synced");
        assert_eq!(saved.into_inner(), expected);
    }
}

/// Produces the figures of `bench/results/reliability.md`.
#[test]
#[ignore = "evidence at scale, minutes: `cargo test --release -p plimsoll-train --test runs -- --ignored --nocapture evidence`"]
fn evidence_of_power_cuts() {
    let (mut cut, mut states) = (0, 0);
    for (steps, keep_checkpoints) in [(3, 2), (3, 3), (4, 3), (5, 2), (6, 4), (4, 100), (8, 5)] {
        let setup = Setup { steps, keep_checkpoints, ..saves_every_step() };
        let cuts = a_run_with_a_branch(&setup, 9);
        (cut, states) = (cut + cuts.looked_at.len(), states + cuts.states);
    }
    let recovered = recoveries(&saves_every_step(), 7, 20);
    println!("evidence: {cut} different states (of {states}), and {recovered} while a cut run is resumed");
    assert!(cut >= 10_000 && recovered >= 1_000, "{cut} and {recovered}");
}
