//! For tests: a disk that loses power. A [`Recorder`] records the operations of a run on its files; a [`Model`] then
//! constructs the states that a power cut can leave. Data that was not synced may be there or not, in any combination.
//!
//! The model of a disk: a name is durable once its folder is synced, contents are durable once their file is; nothing
//! else is guaranteed. Source: Pillai et al. 2014, "All File Systems Are Not Created Equal", section 2.

use plimsoll_files::{Operation, Watch};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
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
    /// Another name in the same folder.
    Rename(PathBuf, PathBuf),
    /// A file, or a folder with everything in it, was deleted.
    Remove(PathBuf),
    /// The run reported that this step is on disk.
    Promised(u64),
}

/// A watcher that records all operations.
#[derive(Debug, Default)]
pub struct Recorder(Mutex<Vec<Recorded>>);

impl Recorder {
    /// Adds to the recorded operations.
    pub fn push(&self, recorded: Recorded) {
        self.lock().push(recorded);
    }

    /// Takes the operations that were recorded since the last call.
    pub fn take(&self) -> Vec<Recorded> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Recorded>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    pub fn apply(&mut self, recorded: &Recorded, later: &[Recorded]) {
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
    pub fn combinations(&self, few: usize) -> Vec<Vec<bool>> {
        let n = self.pending.len();
        if n <= few {
            return (0..1u32 << n).map(|bits| (0..n).map(|i| bits >> i & 1 == 1).collect()).collect();
        }
        let first = (0..=n).map(|m| (0..n).map(|i| i < m).collect());
        let one = (0..n).flat_map(|m| [true, false].map(|odd| (0..n).map(|i| (i == m) == odd).collect()));
        first.chain(one).collect()
    }

    /// Number of changes of names that are not durable yet.
    pub fn pending(&self) -> usize {
        self.pending.len()
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
                Node::File { durable, current } => {
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
