//! Locks on folders.

use crate::{open_inside, open_own};
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// An exclusive lock on a folder, held until dropped or until the process ends.
#[derive(Debug)]
pub struct FolderLock {
    _file: File,
}

/// Why a folder can't be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds the lock.
    #[error("{path} is in use by another run")]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("{path}: {source}")]
    Io {
        /// The lock file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// The name of the lock file. The process that holds the lock has this file open.
pub const LOCK: &str = "lock";

impl FolderLock {
    /// Locks an existing folder with its file [`LOCK`]. Errors: `InUse`, `Io`.
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

/// Whether a process holds a [`FolderLock`] on a folder. A folder without a lock file is free. Creates nothing, and
/// follows no link in the folder.
pub fn is_locked(folder: &Path) -> bool {
    open_inside(&folder.join(LOCK), 1).is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_locked_by_one_process_at_a_time() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        assert!(!is_locked(folder.path()));
        let lock = FolderLock::take(folder.path()).expect("it is free");
        assert!(is_locked(folder.path()));
        assert!(matches!(FolderLock::take(folder.path()), Err(LockError::InUse { .. })));
        drop(lock);
        assert!(!is_locked(folder.path()));
        FolderLock::take(folder.path()).expect("it is free again");
        let none = folder.path().join("none");
        assert!(matches!(FolderLock::take(&none), Err(LockError::Io { path, .. }) if path == none.join(LOCK)));
    }
}
