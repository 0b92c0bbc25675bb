//! The folder of a supervised run: its files, and the lock that keeps a second supervisor out.

use plimsoll_files::{Disk, Distrust, FolderLock, LockError, check_folder};
use plimsoll_registry::{JOURNAL, output_of};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Why a folder can't be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A file or folder with this name exists.
    #[error("{path} already exists")]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// Another process holds its lock, or it can't be locked.
    #[error(transparent)]
    Locked(#[from] LockError),
    /// Another user can replace it or its contents.
    #[error(transparent)]
    Distrusted(#[from] Distrust),
    /// A system call failed.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// A run's folder, locked by this process until dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    disk: Disk,
    _lock: FolderLock,
}

impl Folder {
    /// Creates `RUNS/NAME` or, without a name, `RUNS/BASE-N` with the first free number N. Only this user may open it:
    /// output, commands and copies of settings may contain secrets. Its files decide which program runs, so no other
    /// user may be able to replace it either. Errors: `Exists` if a name was given, `Distrusted`, `Io`.
    pub fn create(runs: &Path, name: Option<&str>, base: &str) -> Result<PathBuf, FolderError> {
        Disk::default().create_folders(runs).map_err(|source| FolderError::Io { path: runs.to_owned(), source })?;
        let mut private = fs::DirBuilder::new();
        private.mode(0o700);
        let make = |path: PathBuf| match private.create(&path) {
            Ok(()) => match check_folder(&path) {
                Ok(()) => Ok(path),
                Err(distrust) => {
                    // A leftover empty folder is harmless.
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
        free.expect("some number is free")
    }

    /// Locks an existing folder. Errors: `Locked`, `Io`.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        // The path is stored in files that processes with other working folders read.
        let path = path.canonicalize().map_err(|source| FolderError::Io { path: path.to_owned(), source })?;
        let lock = FolderLock::take(&path)?;
        Ok(Self { path, disk: Disk::default(), _lock: lock })
    }

    /// Removes the folder of a run that never started.
    pub fn discard(self) {
        // Files that can't be removed do not affect other runs.
        let _ = self.disk.remove_if_there(&self.path);
    }

    /// Its absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its name, which is the run's name.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The writer of its files.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The journal of all events and decisions.
    pub fn journal(&self) -> PathBuf {
        self.path.join(JOURNAL)
    }

    /// The report.
    pub fn report(&self) -> PathBuf {
        self.path.join("report.json")
    }

    /// A worker's output.
    pub fn output(&self, worker: usize, workers: usize) -> PathBuf {
        output_of(&self.path, worker, workers)
    }

    /// The stacks of an attempt that hung.
    pub(crate) fn stacks(&self, worker: usize, attempt: u32) -> PathBuf {
        self.path.join(format!("stacks-{worker}-{attempt}.txt"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_locks_its_own_folder() {
        let runs = tempfile::tempdir().expect("a temporary folder");
        let runs = runs.path().join("runs");
        let names = [None, None, Some("mine")].map(|name| Folder::create(&runs, name, "train").expect("a folder"));
        assert_eq!(names, ["train-1", "train-2", "mine"].map(|name| runs.join(name)));
        assert!(matches!(Folder::create(&runs, Some("mine"), ""), Err(FolderError::Exists { .. })));
        let folder = Folder::open(&names[2]).expect("it is free");
        assert!(matches!(Folder::open(&names[2]), Err(FolderError::Locked(LockError::InUse { .. }))));
        folder.discard();
        assert!(matches!(Folder::open(&names[2]), Err(FolderError::Io { .. })));
    }
}
