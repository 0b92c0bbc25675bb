//! A disk that refuses: each file operation of a run fails in turn, with each error of a full or failing disk. The run
//! either finishes with the same weights, and reports what it could not write, or ends with an error that names the
//! file. What it reported as saved survives a power cut, and the folder resumes to the bits of an undisturbed run.

use crate::power::{Folders, SETTINGS};
use crate::support::{Setup, bits};
use plimsoll_fake_disk::{Model, Recorded, Recorder, Refusal, UnsyncedData};
use plimsoll_files::Disk;
use plimsoll_telemetry::{Event, Sink};
use plimsoll_train::checkpoint::{MODEL_FILE, OPTIMIZER_FILE, newest_whole};
use plimsoll_train::{Ending, Outcome, RunFolder, Start, TrainError, Trainer, UnlimitedPace};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// ENOSPC, EIO, EROFS, EDQUOT and EMFILE, as numbered by Linux.
const CODES: [(i32, &str); 5] = [(28, "ENOSPC"), (5, "EIO"), (30, "EROFS"), (122, "EDQUOT"), (24, "EMFILE")];

/// Steps of the first session; the second one branches off one step earlier, and makes one step more.
const STEPS: u64 = 3;

fn setup(steps: u64) -> Setup {
    Setup { steps, checkpoint_every: Some(1), eval_every: Some(2), keep_checkpoints: 2, ..Setup::default() }
}

/// Records promises, and counts what a session reports as not written.
struct Reports<'r> {
    recorder: &'r Recorder,
    lost: u64,
    failed: u64,
}

impl Sink for Reports<'_> {
    fn take(&mut self, event: &Event) {
        match event {
            Event::CheckpointSaved { step, .. } => self.recorder.push(Recorded::Promised(*step)),
            Event::CheckpointFailed { .. } => self.failed += 1,
            Event::EventsLost { events, .. } => self.lost = *events,
            _ => {}
        }
    }
}

/// A session as the program runs it: its settings are written when its start was accepted.
fn session(
    setup: &Setup,
    reports: &mut Reports<'_>,
    disk: Disk,
    run: &Path,
    start: &Start,
) -> Result<Outcome, TrainError> {
    let folder = RunFolder::open_on(disk, run, *start != Start::Fresh)?;
    let trainer = Trainer {
        engine: &mut setup.engine(),
        dataset: &Arc::new(setup.dataset()),
        folder: &folder,
        config: &setup.config(),
        sinks: vec![reports],
        stop: &AtomicBool::new(false),
        pace: &UnlimitedPace,
    };
    let started = trainer.start(start)?;
    folder.write(&folder.config(), SETTINGS)?;
    started.run()
}

/// Losses and weights of a run without faults.
struct Whole {
    losses: Vec<u64>,
    files: [Vec<u8>; 2],
}

fn weights(run: &Path, step: u64) -> [Vec<u8>; 2] {
    let checkpoint = run.join(format!("checkpoints/step-{step:06}"));
    [MODEL_FILE, OPTIMIZER_FILE].map(|file| fs::read(checkpoint.join(file)).expect("a complete checkpoint"))
}

/// A session that meets faults, and what preceded it.
struct Case {
    setup: Setup,
    /// Operations of the sessions before it, all without faults.
    before: Vec<Recorded>,
    /// The run's folder before it; `None` if it starts the run.
    base: Option<PathBuf>,
    start: u64,
    whole: Whole,
    /// Number of its file operations without faults.
    operations: usize,
}

/// What became of the faulted sessions.
#[derive(Debug, Default)]
struct Tally {
    finished: usize,
    unsaved: usize,
    refused: usize,
}

impl Case {
    /// The first session of a run, and its second one, which starts a branch.
    fn all(folders: &Folders) -> [Self; 2] {
        let case = |steps: u64, start: u64, before: Vec<Recorded>, base: Option<PathBuf>| {
            let (setup, recorder) = (setup(steps), Arc::new(Recorder::default()));
            let run = folders.disk.join("run");
            let whole = folders.disk.with_file_name(format!("whole-{steps}"));
            let expected = setup.run(&whole, &Start::Fresh, |_: &_, _: &_| {}).1;
            let mut reports = Reports { recorder: &recorder, lost: 0, failed: 0 };
            let from = start_of(&run, start);
            session(&setup, &mut reports, Disk::watched(recorder.clone()), &run, &from).expect("no fault");
            let losses = bits(&crate::support::all_losses(&expected, steps));
            let whole = Whole { losses, files: weights(&whole, steps) };
            let operations = recorder.seen();
            (Self { setup, before, base, start, whole, operations }, recorder.take())
        };
        let (first, before) = case(STEPS, 0, vec![], None);
        let base = folders.disk.with_file_name("base");
        copy(&folders.disk.join("run"), &base);
        let (second, _) = case(STEPS + 1, STEPS - 1, before, Some(base));
        [first, second]
    }

    /// Runs the session on a disk that refuses, and checks all that is promised.
    fn check(&self, folders: &Folders, refusal: Refusal, tally: &mut Tally) {
        let what = format!("from step {}, {refusal:?}", self.start);
        let run = folders.disk.join("run");
        fs::remove_dir_all(&folders.disk).expect("it is there");
        fs::create_dir(&folders.disk).expect("a new folder");
        self.base.iter().for_each(|base| copy(base, &run));
        let recorder = Arc::new(Recorder::refusing(refusal));
        let mut reports = Reports { recorder: &recorder, lost: 0, failed: 0 };
        let disk = Disk::watched(recorder.clone());
        let ended = session(&self.setup, &mut reports, disk, &run, &start_of(&run, self.start));
        let code = std::io::Error::from_raw_os_error(refusal.code).to_string();
        match &ended {
            Ok(outcome) if outcome.unsaved.is_none() => {
                assert_eq!(outcome.ending, Ending::Finished, "{what}");
                assert!(weights(&run, self.setup.steps) == self.whole.files, "{what}: other weights");
                tally.finished += 1;
            }
            Ok(outcome) => {
                let reason = outcome.unsaved.as_deref().unwrap_or_default();
                assert!(reason.contains(&code) && reason.contains("step-"), "{what}: {reason}");
                assert!(reports.failed > 0, "{what}");
                tally.unsaved += 1;
            }
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains(&code) && error.contains(&*folders.disk.to_string_lossy()), "{what}: {error}");
                tally.refused += 1;
            }
        }
        self.check_cuts(folders, &recorder.take(), reports.lost, &what);
        self.resume(&run, reports.lost, &what);
    }

    /// The power fails at any time after a promise, and everything that was not synced is lost.
    fn check_cuts(&self, folders: &Folders, recorded: &[Recorded], lost: u64, what: &str) {
        let mut model = Model::new(&folders.disk);
        let all = self.before.iter().chain(recorded).cloned().collect::<Vec<_>>();
        // A branch replaces later checkpoints.
        let mut promised = (self.start > 0).then_some(self.start);
        for (done, operation) in all.iter().enumerate() {
            model.apply(operation, &all[done + 1..]);
            if done < self.before.len() {
                continue;
            }
            if let Recorded::Promised(step) = operation {
                promised = Some(*step);
            }
            if matches!(operation, Recorded::Promised(_) | Recorded::Remove(_) | Recorded::SyncFolder(_))
                || done + 1 == all.len()
            {
                let none = vec![false; model.pending()];
                let tree = model.after_a_cut(&none, |_| UnsyncedData::Nothing);
                folders.look(&tree, promised, lost, what);
            }
        }
    }

    /// The folder resumes, without faults, to the bits of the undisturbed run.
    fn resume(&self, run: &Path, lost: u64, what: &str) {
        let newest = newest_whole(&run.join("checkpoints")).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(newest.skipped.is_empty(), "{what}: {:?}", newest.skipped);
        let start = newest.found.map_or(Start::Fresh, |(path, _)| Start::Resume(path));
        if start == Start::Fresh {
            // Like a user who starts over if nothing was saved.
            let _ = fs::remove_dir_all(run);
        }
        let (ending, report, _) = self.setup.run(run, &start, |_: &_, _: &_| {});
        assert_eq!(ending, Ending::Finished, "{what}");
        let missing = report.losses.iter().filter(|loss| loss.is_none()).count() as u64;
        assert!(missing <= lost, "{what}: {missing} losses are missing, {lost} were reported");
        for (loss, expected) in report.losses.iter().zip(&self.whole.losses) {
            assert!(loss.is_none_or(|loss| loss.to_bits() == *expected), "{what}: other losses");
        }
        assert!(weights(run, self.setup.steps) == self.whole.files, "{what}: other weights after the resume");
    }
}

/// The checkpoint of this step; none for 0.
fn start_of(run: &Path, step: u64) -> Start {
    if step == 0 { Start::Fresh } else { Start::Resume(run.join(format!("checkpoints/step-{step:06}"))) }
}

/// Copies a folder with its links.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("a new folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let (path, new) = (entry.path(), to.join(entry.file_name()));
        if path.is_symlink() {
            #[cfg(unix)]
            std::os::unix::fs::symlink(fs::read_link(path).expect("a link"), new).expect("linked");
        } else if path.is_dir() {
            copy(&path, &new);
        } else {
            fs::copy(path, new).expect("copied");
        }
    }
}

/// Refuses operations of both sessions: one, two in sequence, and all from one on. `stride`: which of the operations are
/// tried; each with one code, or with all if it is 1.
fn enumerate(stride: usize) -> usize {
    let folders = Folders::new();
    let (mut tried, mut tally) = (0, Tally::default());
    for case in Case::all(&folders) {
        for from in (0..case.operations).step_by(stride) {
            for (number, (code, _)) in CODES.into_iter().enumerate() {
                for (kind, count) in [1, 2, usize::MAX].into_iter().enumerate() {
                    let turn = from / stride;
                    let is_sampled = (turn + number).is_multiple_of(5) && (turn + kind).is_multiple_of(3);
                    if stride == 1 || is_sampled {
                        case.check(&folders, Refusal { from, count, code }, &mut tally);
                        tried += 1;
                    }
                }
            }
        }
    }
    println!("evidence: {tried} refused operations or sequences of them ({tally:?})");
    assert!(tally.finished > 0 && tally.unsaved > 0 && tally.refused > 0, "{tally:?}");
    tried
}

#[test]
fn a_disk_that_refuses_any_operation_loses_nothing_that_was_reported() {
    assert!(enumerate(2) > 60);
}

/// Produces the figure of `bench/results/reliability.md`.
#[test]
#[ignore = "evidence at scale, minutes: `python3 bench/reliability.py --only disk`"]
fn evidence_of_disk_faults() {
    assert!(enumerate(1) > 2000);
}
