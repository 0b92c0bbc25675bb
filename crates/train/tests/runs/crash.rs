//! Power cuts: records every file operation of a run, then constructs and checks every possible state of the disk after
//! a cut between two of them. Data that was not synced may be there or not, in any combination.
//!
//! The model of a disk: a name is durable once its folder is synced, contents are durable once their file is; nothing
//! else is guaranteed. Source: Pillai et al. 2014, "All File Systems Are Not Created Equal", section 2.

use crate::support::Setup;
use plimsoll_files::{Disk, Operation, Watch};
use plimsoll_telemetry::{Branches, Event};
use plimsoll_train::checkpoint::{newest_whole, verify};
use plimsoll_train::{Ending, History, Start};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::{fs, io};

/// A file operation, or a promise made by the run.
#[derive(Debug, Clone)]
enum Recorded {
    CreateFolder(PathBuf),
    CreateFile(PathBuf),
    CreateLink(PathBuf, PathBuf),
    Append(PathBuf, Vec<u8>),
    Truncate(PathBuf, u64),
    /// With the file's contents at that time.
    SyncFile(PathBuf, Vec<u8>),
    SyncFolder(PathBuf),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
    /// The run reported that this step is on disk.
    Promised(u64),
}

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<Recorded>>);

impl Recorder {
    fn push(&self, recorded: Recorded) {
        self.0.lock().expect("no other panic").push(recorded);
    }
}

impl Watch for Recorder {
    fn before(&self, operation: Operation<'_>) -> io::Result<()> {
        let own = Path::to_owned;
        self.push(match operation {
            Operation::CreateFolder(path) => Recorded::CreateFolder(own(path)),
            Operation::CreateFile(path) => Recorded::CreateFile(own(path)),
            Operation::CreateLink(path, target) => Recorded::CreateLink(own(path), own(target)),
            Operation::Append(path, bytes) => Recorded::Append(own(path), bytes.to_vec()),
            Operation::Truncate(path, bytes) => Recorded::Truncate(own(path), bytes),
            Operation::SyncFile(path) => Recorded::SyncFile(own(path), fs::read(path)?),
            Operation::SyncFolder(path) => Recorded::SyncFolder(own(path)),
            Operation::Rename(from, to) => Recorded::Rename(own(from), own(to)),
            Operation::RemoveFile(path) | Operation::RemoveFolder(path) => Recorded::Remove(own(path)),
        });
        Ok(())
    }
}

/// A file or a folder, in its current state and in its durable state.
#[derive(Debug, Clone)]
enum Node {
    File { durable: Vec<u8>, current: Vec<u8> },
    Folder { durable: BTreeMap<String, usize>, current: BTreeMap<String, usize> },
}

/// A pending change of names in a folder. A rename is one change.
#[derive(Debug, Clone)]
struct Change {
    folder: usize,
    names: Vec<(String, Option<usize>)>,
}

/// A disk below one folder.
#[derive(Debug, Clone)]
struct Model {
    root: PathBuf,
    nodes: Vec<Node>,
    pending: Vec<Change>,
}

/// How much of the unsynced file contents survives a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnsyncedData {
    Nothing,
    Half,
    All,
}

type Tree = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// A tree with the hashes of its files.
type Hashes = Vec<(PathBuf, Option<blake3::Hash>)>;

impl Model {
    fn new(root: &Path) -> Self {
        let empty = Node::Folder { durable: BTreeMap::new(), current: BTreeMap::new() };
        Self { root: root.to_owned(), nodes: vec![empty], pending: vec![] }
    }

    /// A disk with this tree, all of it durable.
    fn of(root: &Path, tree: &Tree) -> Self {
        let mut model = Self::new(root);
        for (path, file) in tree.iter().filter(|(path, _)| !path.as_os_str().is_empty()) {
            let node = match file {
                Some(bytes) => Node::File { durable: bytes.clone(), current: bytes.clone() },
                None => Node::Folder { durable: BTreeMap::new(), current: BTreeMap::new() },
            };
            model.create(&root.join(path), node);
        }
        let pending = std::mem::take(&mut model.pending);
        for Change { folder, names } in pending {
            let Node::Folder { durable, .. } = &mut model.nodes[folder] else { panic!("a file") };
            apply(durable, &names);
        }
        model
    }

    fn names(&self, folder: usize) -> &BTreeMap<String, usize> {
        let Node::Folder { current, .. } = &self.nodes[folder] else { panic!("{folder} is a file") };
        current
    }

    fn find(&self, path: &Path) -> usize {
        let below = path.strip_prefix(&self.root).expect("a run writes only into its folder");
        below.iter().fold(0, |folder, name| self.names(folder)[&*name.to_string_lossy()])
    }

    /// The folder of a path, and its name there.
    fn place(&self, path: &Path) -> (usize, String) {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (self.find(path.parent().expect("a folder")), name)
    }

    fn change(&mut self, folder: usize, names: Vec<(String, Option<usize>)>) {
        let Node::Folder { current, .. } = &mut self.nodes[folder] else { panic!("{folder} is a file") };
        apply(current, &names);
        self.pending.push(Change { folder, names });
    }

    fn create(&mut self, path: &Path, node: Node) {
        let (folder, name) = self.place(path);
        self.nodes.push(node);
        self.change(folder, vec![(name, Some(self.nodes.len() - 1))]);
    }

    fn contents(&mut self, path: &Path) -> (&mut Vec<u8>, &mut Vec<u8>) {
        let file = self.find(path);
        let Node::File { durable, current } = &mut self.nodes[file] else { panic!("{} is a folder", path.display()) };
        (durable, current)
    }

    fn remove(&mut self, path: &Path) {
        let node = self.find(path);
        if let Node::Folder { current, .. } = &self.nodes[node] {
            // A folder is removed file by file.
            let names = current.keys().cloned().collect::<Vec<_>>();
            names.into_iter().for_each(|name| self.change(node, vec![(name, None)]));
        }
        let (folder, name) = self.place(path);
        self.change(folder, vec![(name, None)]);
    }

    /// Applies an operation; `later` are the operations after it.
    fn apply(&mut self, recorded: &Recorded, later: &[Recorded]) {
        match recorded {
            Recorded::CreateFolder(path) => {
                self.create(path, Node::Folder { durable: BTreeMap::new(), current: BTreeMap::new() });
            }
            Recorded::CreateFile(path) => {
                // Its later contents may exist as soon as its name does.
                let written = later.iter().find_map(|r| match r {
                    Recorded::SyncFile(synced, bytes) if synced == path => Some(bytes.clone()),
                    Recorded::Append(added, _) if added == path => Some(vec![]),
                    _ => None,
                });
                self.create(path, Node::File { durable: vec![], current: written.unwrap_or_default() });
            }
            Recorded::CreateLink(path, target) => {
                // A link's target is part of the link. It is modeled as a file that contains a path.
                let target = target.to_string_lossy().into_owned().into_bytes();
                self.create(path, Node::File { durable: target.clone(), current: target });
            }
            Recorded::Append(path, bytes) => self.contents(path).1.extend(bytes),
            Recorded::Truncate(path, bytes) => self.contents(path).1.truncate(*bytes as usize),
            Recorded::SyncFile(path, bytes) => {
                let (durable, current) = self.contents(path);
                assert!(current == bytes, "something wrote to {} unseen", path.display());
                durable.clone_from(bytes);
            }
            Recorded::SyncFolder(path) => {
                let folder = self.find(path);
                let (synced, pending) = self.pending.drain(..).partition(|c| c.folder == folder);
                self.pending = pending;
                let Node::Folder { durable, .. } = &mut self.nodes[folder] else { panic!("a file") };
                let synced: Vec<Change> = synced;
                synced.iter().for_each(|change| apply(durable, &change.names));
            }
            Recorded::Rename(from, to) => {
                let (node, (folder, old), (other, new)) = (self.find(from), self.place(from), self.place(to));
                assert_eq!(folder, other, "a rename inside a folder");
                self.change(folder, vec![(old, None), (new, Some(node))]);
            }
            Recorded::Remove(path) => self.remove(path),
            Recorded::Promised(_) => {}
        }
        // The state of removed folders is undetermined.
        let reachable = self.reachable();
        self.pending.retain(|change| reachable.contains(&change.folder));
    }

    fn reachable(&self) -> HashSet<usize> {
        let mut seen = HashSet::from([0]);
        let mut open = vec![0];
        while let Some(node) = open.pop() {
            let Node::Folder { durable, current } = &self.nodes[node] else { continue };
            let pending = self.pending.iter().filter(|c| c.folder == node).flat_map(|c| &c.names).filter_map(|n| n.1);
            let below = durable.values().chain(current.values()).copied().chain(pending);
            open.extend(below.filter(|&node| seen.insert(node)));
        }
        seen
    }

    /// Combinations of the pending changes that may survive: all of them for up to `few` changes; for more, those that
    /// differ from all or from none by one, and the prefixes.
    fn combinations(&self, few: usize) -> Vec<Vec<bool>> {
        let n = self.pending.len();
        if n <= few {
            return (0..1u32 << n).map(|bits| (0..n).map(|i| bits >> i & 1 == 1).collect()).collect();
        }
        let first = (0..=n).map(|m| (0..n).map(|i| i < m).collect());
        let one = (0..n).flat_map(|m| [true, false].map(|odd| (0..n).map(|i| (i == m) == odd).collect()));
        first.chain(one).collect()
    }

    /// The disk after a cut: with these pending changes, and this much of the journal and of other files.
    fn after_a_cut(&self, there: &[bool], journal: UnsyncedData, others: UnsyncedData) -> Tree {
        let mut folders = BTreeMap::new();
        for (number, node) in self.nodes.iter().enumerate() {
            if let Node::Folder { durable, .. } = node {
                folders.insert(number, durable.clone());
            }
        }
        for (change, _) in self.pending.iter().zip(there).filter(|(_, there)| **there) {
            apply(folders.get_mut(&change.folder).expect("a folder"), &change.names);
        }
        let (mut tree, mut open) = (Tree::new(), vec![(PathBuf::new(), 0)]);
        while let Some((path, number)) = open.pop() {
            match &self.nodes[number] {
                Node::Folder { .. } => {
                    open.extend(folders[&number].iter().map(|(name, &node)| (path.join(name), node)));
                    tree.insert(path, None);
                }
                Node::File { durable, current } => {
                    let much = if path.ends_with("journal.jsonl") { journal } else { others };
                    let contents = match much {
                        UnsyncedData::Nothing => durable.clone(),
                        UnsyncedData::Half => {
                            current[..durable.len().midpoint(current.len()).min(current.len())].to_vec()
                        }
                        UnsyncedData::All => current.clone(),
                    };
                    tree.insert(path, Some(contents));
                }
            }
        }
        tree
    }
}

fn apply(folder: &mut BTreeMap<String, usize>, names: &[(String, Option<usize>)]) {
    for (name, node) in names {
        match node {
            Some(node) => folder.insert(name.clone(), *node),
            None => folder.remove(name),
        };
    }
}

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
                    let tree = model.after_a_cut(&there, journal, others);
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
    let recorded = || std::mem::take(&mut *recorder.0.lock().expect("no other panic"));
    let (mut cuts, mut model) = (Cuts::default(), Model::new(&folders.disk));
    cuts.take(&folders, &mut model, &recorded(), None, few);
    let from = setup.steps - 1;
    let start = Start::Resume(run.join(format!("checkpoints/step-{from:06}")));
    record(&Setup { steps: setup.steps + 1, ..setup.clone() }, &recorder, &run, &start);
    // The branch replaces the run's newest checkpoint, so the promise before it started is the older step.
    cuts.take(&folders, &mut model, &recorded(), Some(from), few);
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
        let recorded = std::mem::take(&mut *recorder.0.lock().expect("no other panic"));
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
