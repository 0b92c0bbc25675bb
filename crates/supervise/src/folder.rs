//! The folder of a supervised run: its files, and the lock that keeps a second supervisor out.

use crate::output::{Progress, last_progress};
use plimsoll_files::{Disk, Distrust, FolderLock, LockError, check_folder, read_end_inside};
use plimsoll_units::Bytes;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Why a folder can't be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Something has this name already.
    #[error("{path} is there already")]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// Another process has it.
    #[error("{path} is in use by another supervisor")]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// Another user can replace it or what is in it.
    #[error(transparent)]
    Distrusted(#[from] Distrust),
    /// The system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// A folder that this process has for itself, until this is dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    disk: Disk,
    _lock: FolderLock,
}

impl Folder {
    /// Makes `RUNS/NAME`; without a name, `RUNS/BASE-1`, with the first number that nothing has. Nobody else may enter it:
    /// output, commands and copies of settings may have secrets. Its files decide what is run, so no other user may be able to
    /// replace it either. Errors: `Exists` where a name was given, `Distrusted`, `Io`.
    pub fn create(runs: &Path, name: Option<&str>, base: &str) -> Result<PathBuf, FolderError> {
        Disk::default().create_folders(runs).map_err(|source| FolderError::Io { path: runs.to_owned(), source })?;
        let mut private = fs::DirBuilder::new();
        private.mode(0o700);
        let make = |path: PathBuf| match private.create(&path) {
            Ok(()) => match check_folder(&path) {
                Ok(()) => Ok(path),
                Err(distrust) => {
                    // An empty folder that stays harms nothing.
                    let _ = fs::remove_dir(&path);
                    Err(distrust.into())
                }
            },
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(FolderError::Exists { path }),
            Err(source) => Err(FolderError::Io { path, source }),
        };
        if let Some(name) = name {
            return make(runs.join(name));
        }
        let mut numbered = (1_u64..).map(|number| make(runs.join(format!("{base}-{number}"))));
        let free = numbered.find(|made| !matches!(made, Err(FolderError::Exists { .. })));
        free.expect("there is no end of numbers")
    }

    /// Takes a folder that is there. Errors: `InUse`, `Io`.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        // The folder is named in files that others read from elsewhere.
        let path = path.canonicalize().map_err(|source| FolderError::Io { path: path.to_owned(), source })?;
        match FolderLock::take(&path) {
            Ok(lock) => Ok(Self { path, disk: Disk::default(), _lock: lock }),
            Err(LockError::InUse { path }) => Err(FolderError::InUse { path }),
            Err(LockError::Io { path, source }) => Err(FolderError::Io { path, source }),
        }
    }

    /// Removes a folder in which nothing ran.
    pub fn discard(self) {
        // Files that can't be removed stay; they disturb no other run.
        let _ = self.disk.remove_if_there(&self.path);
    }

    /// Where it is, from the root.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its name, which is the run's.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Where its files are written.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Every event and decision.
    pub fn journal(&self) -> PathBuf {
        self.path.join(JOURNAL)
    }

    /// What came of it.
    pub fn report(&self) -> PathBuf {
        self.path.join("report.json")
    }

    /// What a worker printed.
    pub fn output(&self, worker: usize, workers: usize) -> PathBuf {
        output_of(&self.path, worker, workers)
    }

    /// The stacks of an attempt that hung.
    pub(crate) fn stacks(&self, worker: usize, attempt: u32) -> PathBuf {
        self.path.join(format!("stacks-{worker}-{attempt}.txt"))
    }
}

/// The journal's name. Not `journal.jsonl`, by which runs of our own are recognized.
pub(crate) const JOURNAL: &str = "supervisor.jsonl";

/// Where what a worker printed lies in a run's folder.
pub fn output_of(folder: &Path, worker: usize, workers: usize) -> PathBuf {
    folder.join(if workers == 1 { "output.log".to_owned() } else { format!("output-{worker}.log") })
}

/// The end of an output in which progress is looked for.
const END: Bytes = Bytes(16 << 10);

/// How far the slowest of a run's workers has come, by what it prints.
pub fn progress_of(folder: &Path, workers: usize) -> Option<Progress> {
    let outputs = (0..workers).map(|worker| output_of(folder, worker, workers));
    outputs.map(|output| last_progress(&read_end_inside(&output, 1, END).ok()?)).min().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_its_folder_for_itself() {
        let runs = tempfile::tempdir().expect("a temporary folder");
        let runs = runs.path().join("runs");
        let names = [None, None, Some("mine")].map(|name| Folder::create(&runs, name, "train").expect("a folder"));
        assert_eq!(names, ["train-1", "train-2", "mine"].map(|name| runs.join(name)));
        assert!(matches!(Folder::create(&runs, Some("mine"), ""), Err(FolderError::Exists { .. })));
        let folder = Folder::open(&names[2]).expect("nobody has it");
        assert!(matches!(Folder::open(&names[2]), Err(FolderError::InUse { .. })));
        folder.discard();
        assert!(matches!(Folder::open(&names[2]), Err(FolderError::Io { .. })));
    }
}
