//! Folders that one process has for itself.

use crate::{open_inside, open_own};
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// A folder that this process has for itself, until this is dropped or the process ends.
#[derive(Debug)]
pub struct FolderLock {
    _file: File,
}

/// Why a folder can't be had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("{path} is in use")]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file by which folders are locked.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// The file in a folder by which it is locked. The process that has the folder has this file open.
pub const LOCK: &str = "lock";

impl FolderLock {
    /// Takes a folder that is there, by the file [`LOCK`] in it. Errors: `InUse`, `Io`.
    pub fn take(folder: &Path) -> Result<Self, LockError> {
        let path = folder.join(LOCK);
        let file = match open_own(&path) {
            Ok(file) => file,
            Err(source) => return Err(LockError::Io { path, source }),
        };
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(LockError::InUse { path: folder.to_owned() }),
            Err(TryLockError::Error(source)) => Err(LockError::Io { path, source }),
        }
    }
}

/// Whether a process has a folder by a [`FolderLock`]. A folder without a lock is free. Nothing is created, and no link in the
/// folder is followed.
pub fn is_locked(folder: &Path) -> bool {
    open_inside(&folder.join(LOCK), 1).is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_owner_at_a_time() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        assert!(!is_locked(folder.path()));
        let lock = FolderLock::take(folder.path()).expect("nobody has it");
        assert!(is_locked(folder.path()));
        assert!(matches!(FolderLock::take(folder.path()), Err(LockError::InUse { .. })));
        drop(lock);
        assert!(!is_locked(folder.path()));
        FolderLock::take(folder.path()).expect("nobody has it any more");
        let none = folder.path().join("none");
        assert!(matches!(FolderLock::take(&none), Err(LockError::Io { path, .. }) if path == none.join(LOCK)));
    }
}
