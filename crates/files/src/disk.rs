//! A run's access to its own files: all of them are created, appended to, renamed, synced and deleted here.
//! Never follows links, and makes a file's name as durable as its contents.
//! A watcher is notified of every operation before it happens, and may reject it. Tests use this to record the order of
//! operations, to reproduce every state that a power cut can leave, and to simulate full disks.

use crate::inside::check_folders;
use crate::own::{open_own, parent_of};
use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The suffix of a file that is being written.
const WRITING: &str = ".writing";

/// Time without a write after which an unlocked `.writing` file counts as abandoned.
const ABANDONED: Duration = Duration::from_secs(60);

/// An operation on files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation<'a> {
    /// Create a folder in an existing one.
    CreateFolder(&'a Path),
    /// Create a new file. Writes to it are not reported; a watcher may read it when it is synced.
    CreateFile(&'a Path),
    /// Create a symbolic link. The target is relative to the link's folder.
    CreateLink(&'a Path, &'a Path),
    /// Append bytes to a file.
    Append(&'a Path, &'a [u8]),
    /// Truncate a file to this length.
    Truncate(&'a Path, u64),
    /// Make a file's contents durable.
    SyncFile(&'a Path),
    /// Make the names in a folder durable.
    SyncFolder(&'a Path),
    /// Rename a file or a folder, replacing a file of the new name.
    Rename(&'a Path, &'a Path),
    /// Delete a file or a link.
    RemoveFile(&'a Path),
    /// Delete a folder and everything in it.
    RemoveFolder(&'a Path),
}

impl<'a> Operation<'a> {
    /// The paths that it changes.
    fn paths(self) -> [Option<&'a Path>; 2] {
        match self {
            Self::Rename(from, to) => [Some(from), Some(to)],
            Self::CreateFolder(path)
            | Self::CreateFile(path)
            | Self::CreateLink(path, _)
            | Self::Append(path, _)
            | Self::Truncate(path, _)
            | Self::SyncFile(path)
            | Self::SyncFolder(path)
            | Self::RemoveFile(path)
            | Self::RemoveFolder(path) => [Some(path), None],
        }
    }
}

/// Receives operations.
pub trait Watch: Debug + Send + Sync {
    /// Called before an operation. Errors: the operation fails with this error and is not performed.
    fn before(&self, operation: Operation<'_>) -> io::Result<()>;
}

/// The disk, with or without a watcher.
#[derive(Debug, Clone, Default)]
pub struct Disk {
    watch: Option<Arc<dyn Watch>>,
    /// Folders below this one must not be links.
    root: Option<Arc<Path>>,
}

impl Disk {
    /// A disk that reports its operations to a watcher.
    pub fn watched(watch: Arc<dyn Watch>) -> Self {
        Self { watch: Some(watch), root: None }
    }

    /// This disk for a run in a folder: rejects writes below the folder through links.
    pub fn within(&self, folder: &Path) -> Self {
        Self { root: Some(folder.into()), ..self.clone() }
    }

    fn check(&self, path: &Path) -> io::Result<()> {
        self.root.as_ref().map_or(Ok(()), |root| check_folders(root, path))
    }

    pub(crate) fn before(&self, operation: Operation<'_>) -> io::Result<()> {
        for path in operation.paths().into_iter().flatten() {
            self.check(parent_of(path))?;
        }
        self.watch.as_ref().map_or(Ok(()), |watch| watch.before(operation))
    }

    /// Creates a folder and its missing parents durably. The process that created an existing one may have ended before its name
    /// was durable, so that is made sure, too.
    pub fn create_folders(&self, path: &Path) -> io::Result<()> {
        self.check(path)?;
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => return self.keep_folder(path),
            Ok(_) => return Err(ErrorKind::NotADirectory.into()),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let parent = parent_of(path);
        self.create_folders(parent)?;
        self.create_folder(path)?;
        self.sync_folder(parent)
    }

    /// Makes the name of an existing folder durable. A folder in one that this user may not read is another user's.
    fn keep_folder(&self, path: &Path) -> io::Result<()> {
        match self.sync_folder(parent_of(path)) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
            synced => synced,
        }
    }

    /// Creates a folder. Another process may create it at the same time.
    pub fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.before(Operation::CreateFolder(path))?;
        match fs::create_dir(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            result => result,
        }
    }

    /// Creates a file with these contents, and syncs it. Errors: the file already exists.
    pub fn write_new(&self, path: &Path, contents: &[u8]) -> io::Result<()> {
        self.create_with(path, |path| File::create_new(path)?.write_all(contents))?;
        self.sync_file(path)
    }

    /// Creates a file by calling `make`. Does not sync it.
    pub fn create_with(&self, path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
        self.before(Operation::CreateFile(path))?;
        make(path)
    }

    /// Replaces a file atomically: after a crash, it has the old or the new contents. Only one process may do so at a
    /// time.
    pub fn replace(&self, path: &Path, contents: &[u8]) -> io::Result<()> {
        let temporary = temporary_of(path);
        self.remove_if_there(&temporary)?;
        let mut writing = None;
        let made = self.create_with(&temporary, |path| {
            let mut file = File::create_new(path)?;
            // Without lock support, only `remove_abandoned` loses its proof.
            let _ = file.try_lock();
            file.write_all(contents)?;
            writing = Some(file);
            Ok(())
        });
        let written = made.and_then(|()| self.sync_file(&temporary)).and_then(|()| self.rename(&temporary, path));
        drop(writing);
        if written.is_err() {
            // If the partial file can't be removed, the next replacement removes it.
            let _ = self.remove_if_there(&temporary);
        }
        written?;
        self.sync_folder(parent_of(path))
    }

    /// Deletes `path` if it is a temporary file of a killed writer: it was not written for a minute, and no process
    /// holds its lock, as [`replace`](Self::replace) does while it writes.
    pub fn remove_abandoned(&self, path: &Path, now: SystemTime) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_temporary = name.starts_with('.') && name.ends_with(WRITING);
        let is_old = |found: fs::Metadata| {
            let age = found.modified().ok().and_then(|time| now.duration_since(time).ok());
            found.is_file() && age.is_some_and(|age| age > ABANDONED)
        };
        if !is_temporary || !fs::symlink_metadata(path).is_ok_and(is_old) {
            return;
        }
        // Files that can't be opened, locked or deleted do not affect other runs.
        let Ok(file) = open_own(path) else { return };
        if file.try_lock().is_ok() {
            let _ = self.remove_if_there(path);
        }
    }

    /// Replaces a file or a link with a symbolic link to `target` atomically. `target` is relative to the link's
    /// folder. Only one process may do so at a time. Errors: `path` is a folder; the system has no symbolic links.
    pub fn replace_link(&self, path: &Path, target: &Path) -> io::Result<()> {
        let temporary = temporary_of(path);
        self.remove_if_there(&temporary)?;
        self.before(Operation::CreateLink(&temporary, target))?;
        let made = symlink(target, &temporary).and_then(|()| self.rename(&temporary, path));
        if made.is_err() {
            let _ = self.remove_if_there(&temporary);
        }
        made?;
        self.sync_folder(parent_of(path))
    }

    /// Opens a file for appending, or creates it.
    pub fn open_log(&self, path: &Path) -> io::Result<Log> {
        self.check(parent_of(path))?;
        let is_new = !crate::is_there(path)?;
        if is_new {
            self.before(Operation::CreateFile(path))?;
        }
        let log = Log { disk: self.clone(), path: path.to_owned(), file: open_own(path)? };
        // Also the name of an old file: its creator may have ended before it was durable.
        self.sync_folder(parent_of(path))?;
        Ok(log)
    }

    /// Makes a file's contents durable.
    pub fn sync_file(&self, path: &Path) -> io::Result<()> {
        self.before(Operation::SyncFile(path))?;
        File::open(path)?.sync_all()
    }

    /// Makes the names in a folder durable.
    pub fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.before(Operation::SyncFolder(path))?;
        crate::sync_folder(path)
    }

    /// Renames a file or a folder.
    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.before(Operation::Rename(from, to))?;
        fs::rename(from, to)
    }

    /// Deletes a file, a link (not its target) or a folder with everything in it. Does nothing if it does not exist.
    pub fn remove_if_there(&self, path: &Path) -> io::Result<()> {
        let found = match fs::symlink_metadata(path) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        if found.is_dir() {
            self.before(Operation::RemoveFolder(path))?;
            fs::remove_dir_all(path)
        } else {
            self.before(Operation::RemoveFile(path))?;
            fs::remove_file(path)
        }
    }
}

#[cfg(unix)]
use std::os::unix::fs::symlink;

#[cfg(not(unix))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

/// The temporary name of a file during a replacement: `.NAME.writing`.
fn temporary_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}{WRITING}"))
}

/// An append-only file.
#[derive(Debug)]
pub struct Log {
    disk: Disk,
    path: PathBuf,
    file: File,
}

impl Log {
    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file, for reading.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Appends bytes. Errors: a part of them may have been written.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.disk.before(Operation::Append(&self.path, bytes))?;
        self.file.write_all(bytes)
    }

    /// Truncates the file to `bytes`.
    pub fn truncate(&mut self, bytes: u64) -> io::Result<()> {
        self.disk.before(Operation::Truncate(&self.path, bytes))?;
        self.file.set_len(bytes)
    }

    /// Makes all appended bytes durable.
    pub fn sync(&mut self) -> io::Result<()> {
        self.disk.before(Operation::SyncFile(&self.path))?;
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn temporary_files_of_killed_writers_are_removed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (disk, now) = (Disk::default(), SystemTime::now());
        let later = now + ABANDONED + Duration::from_secs(10);
        let path = temporary_of(&folder.path().join("name"));
        let file = File::create_new(&path).expect("made");
        file.lock().expect("locked");
        disk.remove_abandoned(&path, later);
        assert!(path.exists(), "a process writes it");
        drop(file);
        disk.remove_abandoned(&path, now);
        assert!(path.exists(), "a process may be about to lock it");
        disk.remove_abandoned(&path, later);
        assert!(!path.exists());
        // Files of other names are not touched.
        let other = folder.path().join("name.writing");
        fs::write(&other, "").expect("written");
        disk.remove_abandoned(&other, later);
        assert!(other.exists());
    }

    /// Refuses syncs of folders while it is true, and keeps the folders whose names were synced.
    #[derive(Debug, Default)]
    struct Syncs(Mutex<(bool, Vec<PathBuf>)>);

    impl Watch for Syncs {
        fn before(&self, operation: Operation<'_>) -> io::Result<()> {
            let mut state = self.0.lock().expect("no panic");
            if let Operation::SyncFolder(path) = operation {
                if state.0 {
                    return Err(ErrorKind::StorageFull.into());
                }
                state.1.push(path.to_owned());
            }
            Ok(())
        }
    }

    #[test]
    fn a_name_that_was_not_synced_when_it_was_created_is_synced_by_the_next_attempt() {
        let parent = tempfile::tempdir().expect("a temporary folder");
        let (folder, log) = (parent.path().join("a/b"), parent.path().join("a/b/log"));
        let syncs = Arc::new(Syncs::default());
        let disk = Disk::watched(syncs.clone());
        let attempt = |refuses: bool| {
            *syncs.0.lock().expect("no panic") = (refuses, vec![]);
            let made = disk.create_folders(&folder).and_then(|()| disk.open_log(&log).map(drop));
            let synced = std::mem::take(&mut syncs.0.lock().expect("no panic").1);
            (made.is_ok(), synced)
        };
        assert_eq!(attempt(true), (false, vec![]));
        // As after a kill between the creation and the sync.
        fs::create_dir_all(&folder).expect("new folders");
        fs::write(&log, "").expect("a new file");
        let made = disk.create_folders(folder.parent().expect("a folder"));
        assert!(made.is_err(), "nothing is reported as durable that is not");
        let (is_made, synced) = attempt(false);
        assert!(is_made && synced == [folder.parent().expect("a folder"), &folder], "{synced:?}");
        disk.create_folders(folder.parent().expect("a folder")).expect("it is there");
        assert_eq!(syncs.0.lock().expect("no panic").1, [parent.path()]);
    }

    #[test]
    fn a_file_is_replaced_without_leftovers() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("deep/er/a.json");
        let disk = Disk::default();
        disk.create_folders(path.parent().expect("a folder")).expect("new folders");
        for contents in ["one", "two"] {
            disk.replace(&path, contents.as_bytes()).expect("replaced");
            assert_eq!(fs::read_to_string(&path).expect("text"), contents);
        }
        assert_eq!(fs::read_dir(path.parent().expect("a folder")).expect("readable").count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_not_followed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (mine, path) = (folder.path().join("mine"), folder.path().join("a.json"));
        fs::write(&mine, "precious").expect("written");
        for link in [path.clone(), temporary_of(&path)] {
            std::os::unix::fs::symlink(&mine, &link).expect("a link");
        }
        let disk = Disk::default();
        disk.replace(&path, b"new").expect("replaced");
        assert!(!fs::symlink_metadata(&path).expect("a file").is_symlink());
        std::os::unix::fs::symlink(&mine, folder.path().join("log")).expect("a link");
        let error = disk.open_log(&folder.path().join("log")).unwrap_err();
        assert_eq!(error.to_string(), "it is a symbolic link, not a regular file");
        disk.remove_if_there(&folder.path().join("log")).expect("removed");
        assert_eq!(fs::read_to_string(&mine).expect("text"), "precious");
    }
}
