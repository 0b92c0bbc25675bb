//! Power cuts: every operation that a run does to its files is recorded, and every state that a disk may be in after a
//! cut between two of them is made and looked at. Whatever was not synced may be there or not, in any combination.
//!
//! The model of a disk: a name is durable once its folder is synced, contents are once their file is; nothing else is
//! promised. Source: Pillai et al. 2014, "All File Systems Are Not Created Equal", section 2.

use crate::support::Setup;
use plimsoll_files::{Disk, Operation, Watch};
use plimsoll_telemetry::{Branches, Event};
use plimsoll_train::checkpoint::newest_whole;
use plimsoll_train::{Ending, History, Start};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::{fs, io};

/// An operation, or a promise that the run made.
#[derive(Debug, Clone)]
enum Recorded {
    CreateFolder(PathBuf),
    CreateFile(PathBuf),
    Append(PathBuf, Vec<u8>),
    Truncate(PathBuf, u64),
    /// With the file's contents at that time.
    SyncFile(PathBuf, Vec<u8>),
    SyncFolder(PathBuf),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
    /// The run said that this step is on disk.
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

/// A file or a folder, as a program sees it and as a cut may leave it.
#[derive(Debug, Clone)]
enum Node {
    File { durable: Vec<u8>, current: Vec<u8> },
    Folder { durable: BTreeMap<String, usize>, current: BTreeMap<String, usize> },
}

/// A change of names in a folder that is not durable yet. A rename is one change.
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

/// How much of what was written to files since they were synced is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Much {
    Nothing,
    Half,
    All,
}

type Tree = BTreeMap<PathBuf, Option<Vec<u8>>>;

impl Model {
    fn new(root: &Path) -> Self {
        let empty = Node::Folder { durable: BTreeMap::new(), current: BTreeMap::new() };
        Self { root: root.to_owned(), nodes: vec![empty], pending: vec![] }
    }

    fn names(&self, folder: usize) -> &BTreeMap<String, usize> {
        let Node::Folder { current, .. } = &self.nodes[folder] else { panic!("{folder} is a file") };
        current
    }

    fn find(&self, path: &Path) -> usize {
        let below = path.strip_prefix(&self.root).expect("a run writes only into its folder");
        below.iter().fold(0, |folder, name| self.names(folder)[&*name.to_string_lossy()])
    }

    /// The folder that something lies in, and its name there.
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
            // A folder goes file by file.
            let names = current.keys().cloned().collect::<Vec<_>>();
            names.into_iter().for_each(|name| self.change(node, vec![(name, None)]));
        }
        let (folder, name) = self.place(path);
        self.change(folder, vec![(name, None)]);
    }

    /// Does what was recorded; `later` is what was recorded after it.
    fn apply(&mut self, recorded: &Recorded, later: &[Recorded]) {
        match recorded {
            Recorded::CreateFolder(path) => {
                self.create(path, Node::Folder { durable: BTreeMap::new(), current: BTreeMap::new() });
            }
            Recorded::CreateFile(path) => {
                // What it is about to hold may be there as soon as its name is.
                let written = later.iter().find_map(|r| match r {
                    Recorded::SyncFile(synced, bytes) if synced == path => Some(bytes.clone()),
                    Recorded::Append(added, _) if added == path => Some(vec![]),
                    _ => None,
                });
                self.create(path, Node::File { durable: vec![], current: written.unwrap_or_default() });
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
        // Nobody can tell what became of folders that are gone for good.
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

    /// Which of the pending changes may be there: all combinations of a few; of many, those that differ from all or from
    /// nothing by one, and those of the first so many.
    fn combinations(&self) -> Vec<Vec<bool>> {
        let n = self.pending.len();
        if n <= 5 {
            return (0..1u32 << n).map(|bits| (0..n).map(|i| bits >> i & 1 == 1).collect()).collect();
        }
        let first = (0..=n).map(|m| (0..n).map(|i| i < m).collect());
        let one = (0..n).flat_map(|m| [true, false].map(|odd| (0..n).map(|i| (i == m) == odd).collect()));
        first.chain(one).collect()
    }

    /// The disk after a cut: with these of the pending changes, and so much of the journal and of other files.
    fn after_a_cut(&self, there: &[bool], journal: Much, others: Much) -> Tree {
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
                        Much::Nothing => durable.clone(),
                        Much::Half => current[..durable.len().midpoint(current.len()).min(current.len())].to_vec(),
                        Much::All => current.clone(),
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

/// Records a session, as the program runs it: settings are written when the start was accepted.
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

/// Makes a tree, with files of the same contents linked to one, and looks at it. Panics if the run that it holds can't
/// go on after `promised` with all its losses.
fn look(tree: &Tree, folder: &Path, contents: &Path, promised: Option<u64>) {
    let _ = fs::remove_dir_all(folder);
    for (path, file) in tree {
        let path = folder.join(path);
        let Some(bytes) = file else {
            fs::create_dir_all(path).expect("a new folder");
            continue;
        };
        let stored = contents.join(blake3::hash(bytes).to_hex().as_str());
        if !stored.exists() {
            fs::write(&stored, bytes).expect("written");
        }
        fs::hard_link(stored, path).expect("linked");
    }
    let (run, told) = (folder.join("run"), format!("{:?}", tree.keys()));
    let checkpoints = run.join("checkpoints");
    let newest = newest_whole(&checkpoints).unwrap_or_else(|error| panic!("{error}: {told}"));
    let found = newest.found.as_ref().map(|(_, state)| state.step);
    assert!(found >= promised, "step {promised:?} was on disk, {found:?} is: {:?} {told}", newest.skipped);
    if let Some((path, state)) = &newest.found {
        let lineage = Branches::read(&checkpoints).expect("branches").lineage();
        let history = History::read(&run.join("journal.jsonl"), &lineage, state.step, path);
        let losses = history.unwrap_or_else(|error| panic!("{error}: {told}")).losses;
        let lost = losses.iter().filter(|loss| loss.is_none()).count();
        assert_eq!((lost, losses.len() as u64), (0, state.step), "losses that a checkpoint counts on: {told}");
        assert_eq!(fs::read(run.join("config.yaml")).ok().as_deref(), Some(SETTINGS), "settings: {told}");
    }
}

#[test]
fn invariant_7_no_power_cut_loses_a_checkpoint_or_a_loss_that_one_counts_on() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let (root, copy, contents) = ["disk", "copy", "contents"].map(|name| parent.path().join(name)).into();
    for folder in [&root, &contents] {
        fs::create_dir(folder).expect("a new folder");
    }
    let recorder = Arc::new(Recorder::default());
    let run = root.join("run");
    let setup =
        Setup { steps: 3, checkpoint_every: Some(1), eval_every: Some(2), keep_checkpoints: 2, ..Setup::default() };
    record(&setup, &recorder, &run, &Start::Fresh);
    let first_session = recorder.0.lock().expect("no other panic").len();
    // A branch, which comes by the newest checkpoint of the run again.
    let start = Start::Resume(run.join("checkpoints/step-000002"));
    record(&Setup { steps: 4, ..setup }, &recorder, &run, &start);

    let recorded = recorder.0.lock().expect("no other panic").clone();
    let mut model = Model::new(&root);
    let (mut promised, mut states, mut looked_at) = (None, 0, HashSet::new());
    for (done, operation) in recorded.iter().enumerate() {
        if done == first_session {
            promised = Some(2);
        }
        if let Recorded::Promised(step) = operation {
            promised = Some(*step);
        }
        model.apply(operation, &recorded[done + 1..]);
        for there in model.combinations() {
            let much = [Much::Nothing, Much::Half, Much::All];
            for (journal, others) in much.into_iter().flat_map(|j| much.map(|o| (j, o))) {
                let tree = model.after_a_cut(&there, journal, others);
                states += 1;
                let hash = tree.iter().map(|(path, file)| (path.clone(), file.as_ref().map(|b| blake3::hash(b))));
                if looked_at.insert((promised, hash.collect::<Vec<_>>())) {
                    look(&tree, &copy, &contents, promised);
                }
            }
        }
    }
    eprintln!("{} operations, {states} states after a cut, {} of them different", recorded.len(), looked_at.len());
    assert!(looked_at.len() > 300, "only {} states", looked_at.len());
}
