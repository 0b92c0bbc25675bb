//! A run's folder: the paths of its files, and the lock that excludes a second process.

use crate::checkpoint::{CheckpointError, list};
use plimsoll_files::{Disk, FolderLock, LockError};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Why a run's folder can't be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process trains in it, or it can't be locked.
    #[error(transparent)]
    Locked(#[from] LockError),
    /// It contains a run, and `resume` was not requested.
    #[error("{path} already holds a run")]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// The folder of checkpoints is a symbolic link.
    #[error("{path} is a symbolic link; a run writes and deletes only inside its own folder")]
    Link {
        /// The link.
        path: PathBuf,
    },
    /// The checkpoints can't be listed.
    #[error(transparent)]
    Checkpoints(#[from] CheckpointError),
    /// The system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// The name of the folder of checkpoints.
pub(crate) const CHECKPOINTS: &str = "checkpoints";

/// An open run folder, locked until it is dropped.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    disk: Disk,
    _lock: FolderLock,
}

impl RunFolder {
    /// Creates the folder, or opens it if `resume`. Errors: `Exists`, `Locked`, `Io`, `Link`.
    pub fn open(path: &Path, resume: bool) -> Result<Self, FolderError> {
        Self::open_on(Disk::default(), path, resume)
    }

    /// Like [`open`](Self::open), on a disk that tests can watch.
    pub fn open_on(disk: Disk, path: &Path, resume: bool) -> Result<Self, FolderError> {
        let io = |path: &Path, source| FolderError::Io { path: path.to_owned(), source };
        let checkpoints = path.join(CHECKPOINTS);
        // A folder prepared by another user must not trick this run into deleting checkpoints elsewhere.
        if fs::symlink_metadata(&checkpoints).is_ok_and(|found| found.is_symlink()) {
            return Err(FolderError::Link { path: checkpoints });
        }
        let disk = disk.within(path);
        disk.create_folders(&checkpoints).map_err(|e| io(&checkpoints, e))?;
        let lock = FolderLock::take(path)?;
        let folder = Self { path: path.to_owned(), disk, _lock: lock };
        if !resume && folder.holds_a_run()? {
            return Err(FolderError::Exists { path: path.to_owned() });
        }
        Ok(folder)
    }

    /// Whether a run wrote an event or saved a checkpoint. A run that was refused at its start leaves a folder that
    /// another run may use.
    fn holds_a_run(&self) -> Result<bool, FolderError> {
        let io = |path: PathBuf, source| FolderError::Io { path, source };
        let has_events = match fs::symlink_metadata(self.journal()) {
            Ok(journal) => journal.len() > 0,
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(source) => return Err(io(self.journal(), source)),
        };
        Ok(has_events || !list(&self.checkpoints())?.is_empty())
    }

    /// The disk that its files are written to.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The resolved configuration.
    pub fn config(&self) -> PathBuf {
        self.path.join("config.yaml")
    }

    /// The model, in the format of `transformers`.
    pub fn model(&self) -> PathBuf {
        self.path.join("config.json")
    }

    /// The plan.
    pub fn plan(&self) -> PathBuf {
        self.path.join("plan.json")
    }

    /// The library's choices for the run's products.
    pub fn products(&self) -> PathBuf {
        self.path.join("products.json")
    }

    /// The journal of all events.
    pub fn journal(&self) -> PathBuf {
        self.path.join("journal.jsonl")
    }

    /// The checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join(CHECKPOINTS)
    }

    /// A link to the newest checkpoint.
    pub fn newest(&self) -> PathBuf {
        self.path.join("model")
    }

    /// The text that the run generated at its end.
    pub fn sample(&self) -> PathBuf {
        self.path.join("sample.json")
    }

    /// The report as a page.
    pub fn page(&self) -> PathBuf {
        self.path.join("report.html")
    }

    /// The report.
    pub fn report(&self) -> PathBuf {
        self.path.join("report.json")
    }
}

impl RunFolder {
    /// Writes one of the folder's files, completely or not at all.
    pub fn write(&self, path: &Path, contents: &[u8]) -> Result<(), FolderError> {
        self.disk.replace(path, contents).map_err(|source| FolderError::Io { path: path.to_owned(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_run_at_a_time_and_is_not_overwritten() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let path = parent.path().join("run");
        let first = RunFolder::open(&path, false).expect("a new folder");
        assert!(matches!(RunFolder::open(&path, true), Err(FolderError::Locked(LockError::InUse { .. }))));
        first.write(&first.journal(), b"").expect("written");
        drop(first);
        let first = RunFolder::open(&path, false).expect("a folder whose run never began");
        first.write(&first.journal(), b"{}\n").expect("written");
        drop(first);
        assert!(matches!(RunFolder::open(&path, false), Err(FolderError::Exists { .. })));
        assert!(RunFolder::open(&path, true).is_ok());
    }
}
