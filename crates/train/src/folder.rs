//! A run's folder: where its files lie, and the lock that keeps a second process out of it.

use crate::checkpoint::list;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Why a run's folder can't be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process trains in it.
    #[error("{path} is in use by another run")]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// A run is there already, and this one was not asked to resume it.
    #[error("{path} holds a run already")]
    Exists {
        /// The folder.
        path: PathBuf,
    },
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

/// An open run folder; the lock is held until it is dropped.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    _lock: File,
}

impl RunFolder {
    /// Creates the folder, or opens it if `resume`. Errors: `Exists`, `InUse`, `Io`.
    pub fn open(path: &Path, resume: bool) -> Result<Self, FolderError> {
        let io = |path: &Path, source| FolderError::Io { path: path.to_owned(), source };
        let checkpoints = path.join("checkpoints");
        fs::create_dir_all(&checkpoints).map_err(|e| io(&checkpoints, e))?;
        let lock_path = path.join("lock");
        let lock = File::options().write(true).create(true).truncate(false).open(&lock_path);
        let lock = lock.map_err(|e| io(&lock_path, e))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FolderError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(e)) => return Err(io(&lock_path, e)),
        }
        let folder = Self { path: path.to_owned(), _lock: lock };
        if !resume && folder.holds_a_run() {
            return Err(FolderError::Exists { path: path.to_owned() });
        }
        Ok(folder)
    }

    /// Whether a run got as far as to say or to save something. One that was refused at its start leaves a folder that
    /// another may take.
    fn holds_a_run(&self) -> bool {
        self.journal().metadata().is_ok_and(|journal| journal.len() > 0) || !list(&self.checkpoints()).is_empty()
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was asked, resolved.
    pub fn config(&self) -> PathBuf {
        self.path.join("config.yaml")
    }

    /// The model, as `transformers` reads it.
    pub fn model(&self) -> PathBuf {
        self.path.join("config.json")
    }

    /// Where every byte was to be.
    pub fn plan(&self) -> PathBuf {
        self.path.join("plan.json")
    }

    /// Every event.
    pub fn journal(&self) -> PathBuf {
        self.path.join("journal.jsonl")
    }

    /// The checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// What came of it.
    pub fn report(&self) -> PathBuf {
        self.path.join("report.json")
    }
}

/// Writes a file so that it is either the old one or the new one, whatever happens.
pub(crate) fn write_whole(path: &Path, contents: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = File::create(&temporary)?;
    file.write_all(contents)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

impl RunFolder {
    /// Writes one of the folder's files, whole or not at all.
    pub fn write(&self, path: &Path, contents: &[u8]) -> Result<(), FolderError> {
        write_whole(path, contents).map_err(|source| FolderError::Io { path: path.to_owned(), source })
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
        assert!(matches!(RunFolder::open(&path, true), Err(FolderError::InUse { .. })));
        first.write(&first.journal(), b"").expect("written");
        drop(first);
        let first = RunFolder::open(&path, false).expect("a folder whose run never began");
        first.write(&first.journal(), b"{}\n").expect("written");
        drop(first);
        assert!(matches!(RunFolder::open(&path, false), Err(FolderError::Exists { .. })));
        assert!(RunFolder::open(&path, true).is_ok());
    }
}
