//! For tests: a disk that loses power. A [`Recorder`] records the operations of a run on its files, and can refuse some, as a
//! full or a failing disk does; a [`Model`] then constructs the states that a power cut can leave. Data that was not synced
//! may be there or not, in any combination.
//!
//! The model of a disk: a name is durable once its folder is synced, contents are durable once their file is; nothing
//! else is guaranteed. What a failed sync was to make durable never is, even if a later sync succeeds, since systems
//! drop the data that they could not write.
//! Sources: Pillai et al. 2014, "All File Systems Are Not Created Equal", section 2; Rebello et al. 2020, "Can
//! Applications Recover from fsync Failures?", section 3.

use plimsoll_files::{Operation, Watch};
use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};

/// A file operation, or a promise made by the run.
#[derive(Debug, Clone)]
pub enum Recorded {
    /// A new folder.
    CreateFolder(PathBuf),
    /// A new file.
    CreateFile(PathBuf),
    /// A new link, with its target.
    CreateLink(PathBuf, PathBuf),
    /// Appended bytes.
    Append(PathBuf, Vec<u8>),
    /// Another length.
    Truncate(PathBuf, u64),
    /// A file became durable, with these contents.
    SyncFile(PathBuf, Vec<u8>),
    /// The names in a folder became durable.
    SyncFolder(PathBuf),
    /// A refused sync, with the file's contents at that time.
    FailedSyncFile(PathBuf, Vec<u8>),
    /// A refused sync of a folder.
    FailedSyncFolder(PathBuf),
    /// Another name in the same folder.
    Rename(PathBuf, PathBuf),
    /// A file, or a folder with everything in it, was deleted.
    Remove(PathBuf),
    /// The run reported that this step is on disk.
    Promised(u64),
}

/// Operations that the disk refuses.
#[derive(Debug, Clone, Copy)]
pub struct Refusal {
    /// The number of the first refused operation, counted from 0.
    pub from: usize,
    /// The number of refused operations.
    pub count: usize,
    /// The system's error code.
    pub code: i32,
}

/// Records operations, and refuses some of them.
#[derive(Debug, Default)]
pub struct Recorder {
    recorded: Mutex<Vec<Recorded>>,
    refusal: Option<Refusal>,
    seen: AtomicUsize,
}

impl Recorder {
    /// A disk that refuses operations.
    pub fn refusing(refusal: Refusal) -> Self {
        Self { refusal: Some(refusal), ..Self::default() }
    }

    /// Adds to the recorded operations.
    pub fn push(&self, recorded: Recorded) {
        self.lock().push(recorded);
    }

    /// Takes the operations that were recorded since the last call.
    pub fn take(&self) -> Vec<Recorded> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Recorded>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of operations so far.
    pub fn seen(&self) -> usize {
        self.seen.load(Ordering::Relaxed)
    }

    /// Records what a refused operation leaves on the disk.
    fn refuse(&self, operation: Operation<'_>) -> io::Result<()> {
        match operation {
            Operation::Append(path, bytes) => {
                let half = &bytes[..bytes.len() / 2];
                self.push(Recorded::Append(path.to_owned(), half.to_vec()));
                fs::File::options().append(true).open(path)?.write_all(half)?;
            }
            Operation::SyncFile(path) => self.push(Recorded::FailedSyncFile(path.to_owned(), fs::read(path)?)),
            Operation::SyncFolder(path) => self.push(Recorded::FailedSyncFolder(path.to_owned())),
            _ => {}
        }
        Ok(())
    }
}

impl Watch for Recorder {
    fn before(&self, operation: Operation<'_>) -> io::Result<()> {
        let number = self.seen.fetch_add(1, Ordering::Relaxed);
        if let Some(Refusal { from, count, code }) = self.refusal
            && (from..from.saturating_add(count)).contains(&number)
        {
            self.refuse(operation)?;
            return Err(io::Error::from_raw_os_error(code));
        }
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
    /// `lost`: what a failed sync was to make durable.
    File {
        durable: Vec<u8>,
        current: Vec<u8>,
        lost: Range<usize>,
    },
    Folder {
        durable: BTreeMap<String, usize>,
        current: BTreeMap<String, usize>,
    },
}

impl Node {
    fn file(durable: Vec<u8>, current: Vec<u8>) -> Self {
        Self::File { durable, current, lost: 0..0 }
    }
}

/// A pending change of names in a folder. A rename is one change.
#[derive(Debug, Clone)]
struct Change {
    folder: usize,
    names: Vec<(String, Option<usize>)>,
    /// Whether a failed sync was to make it durable.
    is_lost: bool,
}

/// A disk below one folder.
#[derive(Debug, Clone)]
pub struct Model {
    root: PathBuf,
    nodes: Vec<Node>,
    pending: Vec<Change>,
}

/// How much of the unsynced file contents survives a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnsyncedData {
    /// Nothing.
    Nothing,
    /// The first half.
    Half,
    /// Everything.
    All,
}

/// The contents of files, and `None` for folders, by their paths below the root.
pub type Tree = BTreeMap<PathBuf, Option<Vec<u8>>>;

impl Model {
    /// An empty disk.
    pub fn new(root: &Path) -> Self {
        let empty = Node::Folder { durable: BTreeMap::new(), current: BTreeMap::new() };
        Self { root: root.to_owned(), nodes: vec![empty], pending: vec![] }
    }

    /// A disk with this tree, all of it durable.
    pub fn of(root: &Path, tree: &Tree) -> Self {
        let mut model = Self::new(root);
        for (path, file) in tree.iter().filter(|(path, _)| !path.as_os_str().is_empty()) {
            let node = match file {
                Some(bytes) => Node::file(bytes.clone(), bytes.clone()),
                None => Node::Folder { durable: BTreeMap::new(), current: BTreeMap::new() },
            };
            model.create(&root.join(path), node);
        }
        let pending = std::mem::take(&mut model.pending);
        for Change { folder, names, .. } in pending {
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
        self.pending.push(Change { folder, names, is_lost: false });
    }

    fn create(&mut self, path: &Path, node: Node) {
        let (folder, name) = self.place(path);
        self.nodes.push(node);
        self.change(folder, vec![(name, Some(self.nodes.len() - 1))]);
    }

    fn contents(&mut self, path: &Path) -> (&mut Vec<u8>, &mut Vec<u8>, &mut Range<usize>) {
        let file = self.find(path);
        match &mut self.nodes[file] {
            Node::File { durable, current, lost } => (durable, current, lost),
            Node::Folder { .. } => panic!("{} is a folder", path.display()),
        }
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
    pub fn apply(&mut self, recorded: &Recorded, later: &[Recorded]) {
        match recorded {
            Recorded::CreateFolder(path) => {
                self.create(path, Node::Folder { durable: BTreeMap::new(), current: BTreeMap::new() });
            }
            Recorded::CreateFile(path) => {
                // Its later contents may exist as soon as its name does.
                let written = later.iter().find_map(|r| match r {
                    Recorded::SyncFile(synced, bytes) | Recorded::FailedSyncFile(synced, bytes) if synced == path => {
                        Some(bytes.clone())
                    }
                    Recorded::Append(added, _) if added == path => Some(vec![]),
                    _ => None,
                });
                self.create(path, Node::file(vec![], written.unwrap_or_default()));
            }
            Recorded::CreateLink(path, target) => {
                // A link's target is part of the link. It is modeled as a file that contains a path.
                let target = target.to_string_lossy().into_owned().into_bytes();
                self.create(path, Node::file(target.clone(), target));
            }
            Recorded::Append(path, bytes) => self.contents(path).1.extend(bytes),
            Recorded::Truncate(path, bytes) => self.contents(path).1.truncate(*bytes as usize),
            Recorded::SyncFile(path, bytes) => {
                let (durable, current, lost) = self.contents(path);
                assert!(current == bytes, "something wrote to {} unseen", path.display());
                durable.clone_from(bytes);
                lost.end = lost.end.min(bytes.len());
                durable.get_mut(lost.clone()).into_iter().for_each(|hole| hole.fill(0));
            }
            Recorded::FailedSyncFile(path, bytes) => {
                let (durable, _, lost) = self.contents(path);
                let start = if lost.start >= lost.end { durable.len() } else { lost.start };
                *lost = start.min(bytes.len())..bytes.len();
            }
            // The root is durable.
            Recorded::SyncFolder(path) | Recorded::FailedSyncFolder(path) if !path.starts_with(&self.root) => {}
            Recorded::SyncFolder(path) => {
                let folder = self.find(path);
                let (synced, pending) = self.pending.drain(..).partition(|c| c.folder == folder);
                self.pending = pending;
                let Node::Folder { durable, .. } = &mut self.nodes[folder] else { panic!("a file") };
                let synced: Vec<Change> = synced;
                let written = synced.iter().filter(|change| !change.is_lost);
                written.for_each(|change| apply(durable, &change.names));
            }
            Recorded::FailedSyncFolder(path) => {
                let folder = self.find(path);
                let unwritten = self.pending.iter_mut().filter(|change| change.folder == folder);
                unwritten.for_each(|change| change.is_lost = true);
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

    /// The number of pending changes.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Combinations of the pending changes that may survive: all of them for up to `few` changes; for more, those that
    /// differ from all or from none by one, and the prefixes.
    pub fn combinations(&self, few: usize) -> Vec<Vec<bool>> {
        let n = self.pending.len();
        if n <= few {
            return (0..1u32 << n).map(|bits| (0..n).map(|i| bits >> i & 1 == 1).collect()).collect();
        }
        let first = (0..=n).map(|m| (0..n).map(|i| i < m).collect());
        let one = (0..n).flat_map(|m| [true, false].map(|odd| (0..n).map(|i| (i == m) == odd).collect()));
        first.chain(one).collect()
    }

    /// The disk after a cut: with these pending changes of names, and this much of the unsynced contents of the file at a
    /// path below the root.
    pub fn after_a_cut(&self, there: &[bool], mut unsynced: impl FnMut(&Path) -> UnsyncedData) -> Tree {
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
                Node::File { durable, current, .. } => {
                    let contents = match unsynced(&path) {
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

/// Writes a tree into an existing folder. Errors: those of the system.
pub fn write_tree(tree: &Tree, folder: &Path) -> io::Result<()> {
    for (path, file) in tree {
        let path = folder.join(path);
        match file {
            Some(bytes) => fs::write(path, bytes)?,
            None => fs::create_dir_all(path)?,
        }
    }
    Ok(())
}
