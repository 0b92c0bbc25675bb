//! Checks every state in which a power cut can leave the disk of a run (`plimsoll-fake-disk`).
#![allow(dead_code, reason = "each test binary uses a part")]

use plimsoll_fake_disk::{Model, Recorded, Tree, UnsyncedData};
use plimsoll_telemetry::Branches;
use plimsoll_train::History;
use plimsoll_train::checkpoint::{newest_whole, verify};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A tree with the hashes of its files.
pub type Hashes = Vec<(PathBuf, Option<blake3::Hash>)>;

/// The contents of the settings of a recorded run.
pub const SETTINGS: &[u8] = b"seed: 7\n";

/// A run's folders: the disk, a copy of it after a cut, and the contents of files.
pub struct Folders {
    _parent: tempfile::TempDir,
    pub disk: PathBuf,
    pub copy: PathBuf,
    contents: PathBuf,
}

impl Folders {
    pub fn new() -> Self {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let [disk, copy, contents] = ["disk", "copy", "contents"].map(|name| parent.path().join(name));
        [&disk, &contents].into_iter().for_each(|folder| fs::create_dir(folder).expect("a new folder"));
        Self { _parent: parent, disk, copy, contents }
    }

    /// Makes the copy match a tree, linking files with the same contents, and checks it. Panics if its run can't be
    /// resumed after `promised` with all its losses, except as many events as the run `reported` as lost.
    pub fn look(&self, tree: &Tree, promised: Option<u64>, reported: u64, what: &str) {
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
        let (run, files) = (self.copy.join("run"), format!("{what}: {:?}", tree.keys()));
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
            let lost = losses.iter().filter(|loss| loss.is_none()).count() as u64;
            assert_eq!(losses.len() as u64, state.step, "{files}");
            assert!(lost <= reported, "{lost} losses that a checkpoint counts on, {reported} reported: {files}");
            assert_eq!(fs::read(run.join("config.yaml")).ok().as_deref(), Some(SETTINGS), "settings: {files}");
        }
    }
}

/// The checked states of a disk after a cut: each tree once per promised step.
#[derive(Default)]
pub struct Cuts {
    pub looked_at: HashSet<(Option<u64>, Hashes)>,
    pub trees: Vec<(Option<u64>, Tree)>,
    pub states: usize,
}

impl Cuts {
    /// Checks all possible states of the disk after a cut following each operation. `few`: the number of name changes
    /// up to which all combinations are tried. Returns the step that was promised at the end.
    pub fn take(
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
                        folders.look(&tree, promised, 0, "");
                        self.trees.push((promised, tree));
                    }
                }
            }
        }
        promised
    }
}
