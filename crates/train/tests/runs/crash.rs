//! Power cuts: records every file operation of a run, then constructs and checks every possible state of the disk after
//! a cut between two of them (`plimsoll-fake-disk`).

use crate::support::Setup;
use plimsoll_fake_disk::{Model, Recorded, Recorder, Tree, UnsyncedData, write_tree};
use plimsoll_files::Disk;
use plimsoll_telemetry::{Branches, Event};
use plimsoll_train::checkpoint::{newest_whole, verify};
use plimsoll_train::{Ending, History, Start};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A tree with the hashes of its files.
type Hashes = Vec<(PathBuf, Option<blake3::Hash>)>;

const SETTINGS: &[u8] = b"seed: 7\n";

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

/// A run's folders: the disk, a copy of it after a cut, and the contents of files.
struct Folders {
    _parent: tempfile::TempDir,
    disk: PathBuf,
    copy: PathBuf,
    contents: PathBuf,
}

impl Folders {
    fn new() -> Self {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let [disk, copy, contents] = ["disk", "copy", "contents"].map(|name| parent.path().join(name));
        [&disk, &contents].into_iter().for_each(|folder| fs::create_dir(folder).expect("a new folder"));
        Self { _parent: parent, disk, copy, contents }
    }

    /// Makes the copy match a tree, linking files with the same contents, and checks it. Panics if its run can't be
    /// resumed after `promised` with all its losses.
    fn look(&self, tree: &Tree, promised: Option<u64>) {
        let _ = fs::remove_dir_all(&self.copy);
        for (path, file) in tree {
            let path = self.copy.join(path);
            let Some(bytes) = file else {
                fs::create_dir_all(path).expect("a new folder");
                continue;
            };
            let stored = self.contents.join(blake3::hash(bytes).to_hex().as_str());
            if !stored.exists() {
                fs::write(&stored, bytes).expect("written");
            }
            fs::hard_link(stored, path).expect("linked");
        }
        let (run, files) = (self.copy.join("run"), format!("{:?}", tree.keys()));
        let checkpoints = run.join("checkpoints");
        let newest = newest_whole(&checkpoints).unwrap_or_else(|error| panic!("{error}: {files}"));
        let found = newest.found.as_ref().map(|(_, state)| state.step);
        assert!(found >= promised, "step {promised:?} was on disk, {found:?} is: {:?} {files}", newest.skipped);
        if let Ok(target) = fs::read_to_string(run.join("model")) {
            let target = run.join(target);
            // The link is absent briefly while a checkpoint of the same step is replaced.
            assert!(!target.exists() || verify(&target).is_ok(), "the link to the newest checkpoint: {files}");
        }
        if let Some((path, state)) = &newest.found {
            let lineage = Branches::read(&checkpoints).expect("branches").lineage();
            let history = History::read(&run.join("journal.jsonl"), &lineage, state.step, path);
            let losses = history.unwrap_or_else(|error| panic!("{error}: {files}")).losses;
            let lost = losses.iter().filter(|loss| loss.is_none()).count();
            assert_eq!((lost, losses.len() as u64), (0, state.step), "losses that a checkpoint counts on: {files}");
            assert_eq!(fs::read(run.join("config.yaml")).ok().as_deref(), Some(SETTINGS), "settings: {files}");
        }
    }
}

/// The checked states of a disk after a cut: each tree once per promised step.
#[derive(Default)]
struct Cuts {
    looked_at: HashSet<(Option<u64>, Hashes)>,
    trees: Vec<(Option<u64>, Tree)>,
    states: usize,
}

impl Cuts {
    /// Checks all possible states of the disk after a cut following each operation. `few`: the number of name changes
    /// up to which all combinations are tried. Returns the step that was promised at the end.
    fn take(
        &mut self,
        folders: &Folders,
        model: &mut Model,
        recorded: &[Recorded],
        mut promised: Option<u64>,
        few: usize,
    ) -> Option<u64> {
        for (done, operation) in recorded.iter().enumerate() {
            if let Recorded::Promised(step) = operation {
                promised = Some(*step);
            }
            model.apply(operation, &recorded[done + 1..]);
            for there in model.combinations(few) {
                let much = [UnsyncedData::Nothing, UnsyncedData::Half, UnsyncedData::All];
                for (journal, others) in much.into_iter().flat_map(|j| much.map(|o| (j, o))) {
                    let much = |path: &Path| if path.ends_with("journal.jsonl") { journal } else { others };
                    let tree = model.after_a_cut(&there, much);
                    self.states += 1;
                    let hash = tree.iter().map(|(path, file)| (path.clone(), file.as_ref().map(|b| blake3::hash(b))));
                    if self.looked_at.insert((promised, hash.collect())) {
                        folders.look(&tree, promised);
                        self.trees.push((promised, tree));
                    }
                }
            }
        }
        promised
    }
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
    eprintln!("{} states after a cut, {} of them different", cuts.states, cuts.looked_at.len());
    assert!(cuts.looked_at.len() > 300, "only {} states", cuts.looked_at.len());
}

/// A run is cut off and resumed, and that session is cut off too: everything on disk before survives, in every state
/// after the first cut.
#[test]
fn invariant_7_no_power_cut_while_a_run_is_resumed_loses_a_saved_step() {
    let count = recoveries(&saves_every_step(), 5, 251);
    assert!(count > 60, "only {count} states");
}

/// Resumes every `stride`-th state of a run after a cut, with a cut following each operation. Returns the number of
/// different states.
fn recoveries(setup: &Setup, few: usize, stride: usize) -> usize {
    let mut count = 0;
    for (promised, tree) in a_run_with_a_branch(setup, few).trees.into_iter().step_by(stride) {
        let folders = Folders::new();
        write_tree(&tree, &folders.disk).expect("written");
        let run = folders.disk.join("run");
        let newest = newest_whole(&run.join("checkpoints")).expect("it was looked at").found;
        let start = newest.map_or(Start::Fresh, |(path, _)| Start::Resume(path));
        if start == Start::Fresh && run.exists() {
            // Like `--resume auto` if nothing was saved.
            continue;
        }
        let recorder = Arc::new(Recorder::default());
        record(&Setup { steps: setup.steps + 2, ..setup.clone() }, &recorder, &run, &start);
        let recorded = recorder.take();
        let mut cuts = Cuts::default();
        cuts.take(&folders, &mut Model::of(&folders.disk, &tree), &recorded, promised, few);
        count += cuts.looked_at.len();
    }
    count
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
    println!("power cuts: {states} states, {cut} of them different, nothing lost");
    let recovered = recoveries(&saves_every_step(), 7, 20);
    println!("power cuts while a cut run is resumed: {recovered} different states, nothing lost");
    assert!(cut >= 10_000 && recovered >= 1_000, "{cut} and {recovered}");
}
