//! What a run does to files of its own: they are made, added to, renamed, synced and deleted here and nowhere else.
//! Links are never followed, and a file's name is as durable as its contents.
//!
//! A watcher is told of every operation before it is done, and may refuse it. Tests record the order of operations so,
//! make every state of it that a power cut can leave, and fill disks that have room.

use crate::inside::check_folders;
use crate::own::{open_own, parent_of};
use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How the names of files end that are being written.
const WRITING: &str = ".writing";

/// After so long without a write, a file that is being written and that no process has locked is abandoned.
const ABANDONED: Duration = Duration::from_secs(60);

/// Something that is done to files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation<'a> {
    /// A folder is made in one that is there.
    CreateFolder(&'a Path),
    /// A file is made that was not there. What is written to it is not told; it is read when it is synced.
    CreateFile(&'a Path),
    /// A symbolic link is made to a path, which is relative to the link's folder.
    CreateLink(&'a Path, &'a Path),
    /// Bytes are added to the end of a file.
    Append(&'a Path, &'a [u8]),
    /// A file is cut to so many bytes.
    Truncate(&'a Path, u64),
    /// A file's contents are made durable.
    SyncFile(&'a Path),
    /// The names in a folder are made durable.
    SyncFolder(&'a Path),
    /// A file or a folder gets another name, and a file that had that name is gone.
    Rename(&'a Path, &'a Path),
    /// A file, or a link to one, is deleted.
    RemoveFile(&'a Path),
    /// A folder is deleted with all below it.
    RemoveFolder(&'a Path),
}

impl<'a> Operation<'a> {
    /// What it is done to.
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

/// Is told of operations.
pub trait Watch: Debug + Send + Sync {
    /// Takes note of an operation that is about to be done. Errors: it is not done and fails with this.
    fn before(&self, operation: Operation<'_>) -> io::Result<()>;
}

/// The disk, with or without a watcher.
#[derive(Debug, Clone, Default)]
pub struct Disk {
    watch: Option<Arc<dyn Watch>>,
    /// Folders below this one are no links.
    root: Option<Arc<Path>>,
}

impl Disk {
    /// A disk whose operations a watcher is told of.
    pub fn watched(watch: Arc<dyn Watch>) -> Self {
        Self { watch: Some(watch), root: None }
    }

    /// This disk for a run in a folder: what is below the folder is not written where a link leads.
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

    /// Makes a folder, and those above it that are missing, so that they outlive a power cut.
    pub fn create_folders(&self, path: &Path) -> io::Result<()> {
        self.check(path)?;
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => return Ok(()),
            Ok(_) => return Err(ErrorKind::NotADirectory.into()),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let parent = parent_of(path);
        self.create_folders(parent)?;
        self.create_folder(path)?;
        self.sync_folder(parent)
    }

    /// Makes a folder. Another process may make it at the same time.
    pub fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.before(Operation::CreateFolder(path))?;
        match fs::create_dir(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            result => result,
        }
    }

    /// Makes a file with these contents, and syncs it. Errors: there is one of this name already.
    pub fn write_new(&self, path: &Path, contents: &[u8]) -> io::Result<()> {
        self.create_with(path, |path| File::create_new(path)?.write_all(contents))?;
        self.sync_file(path)
    }

    /// Has a file made by somebody else. It is not synced.
    pub fn create_with(&self, path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
        self.before(Operation::CreateFile(path))?;
        make(path)
    }

    /// Puts a file with these contents in the place of another, so that it is the old one or the new one whatever
    /// happens. Only one process may do so at a time.
    pub fn replace(&self, path: &Path, contents: &[u8]) -> io::Result<()> {
        let temporary = temporary_of(path);
        self.remove_if_there(&temporary)?;
        let mut writing = None;
        let made = self.create_with(&temporary, |path| {
            let mut file = File::create_new(path)?;
            // A file system without locks costs `remove_abandoned` its proof, and nothing else.
            let _ = file.try_lock();
            file.write_all(contents)?;
            writing = Some(file);
            Ok(())
        });
        let written = made.and_then(|()| self.sync_file(&temporary)).and_then(|()| self.rename(&temporary, path));
        drop(writing);
        if written.is_err() {
            // What was written can't be used; if it stays, the next try removes it.
            let _ = self.remove_if_there(&temporary);
        }
        written?;
        self.sync_folder(parent_of(path))
    }

    /// Deletes the file that a writer which was killed left in place of another one's name, if `path` is one: nothing was
    /// written to it for a minute, and no process has it locked, as [`replace`](Self::replace) does while it writes.
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
        // Files that can't be opened, locked or deleted stay; they disturb no other run.
        let Ok(file) = open_own(path) else { return };
        if file.try_lock().is_ok() {
            let _ = self.remove_if_there(path);
        }
    }

    /// Puts a symbolic link to `target` in the place of a file or of another link, so that it is the old one or the new one
    /// whatever happens. `target` is relative to the link's folder. Only one process may do so at a time.
    /// Errors: there is a folder of this name; the system has no such links.
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

    /// Opens a file to add to it; makes one if there is none.
    pub fn open_log(&self, path: &Path) -> io::Result<Log> {
        self.check(parent_of(path))?;
        let is_new = !crate::is_there(path)?;
        if is_new {
            self.before(Operation::CreateFile(path))?;
        }
        let log = Log { disk: self.clone(), path: path.to_owned(), file: open_own(path)? };
        if is_new {
            self.sync_folder(parent_of(path))?;
        }
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

    /// Gives a file or a folder another name.
    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.before(Operation::Rename(from, to))?;
        fs::rename(from, to)
    }

    /// Deletes whatever has this name, a folder with all below it. Links are deleted, not what they name.
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

/// The name under which a file is written before it is put in its place: `.NAME.writing`.
fn temporary_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}{WRITING}"))
}

/// A file that is only added to.
#[derive(Debug)]
pub struct Log {
    disk: Disk,
    path: PathBuf,
    file: File,
}

impl Log {
    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file, for reading.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Adds bytes to the end. Errors: some of them may be there.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.disk.before(Operation::Append(&self.path, bytes))?;
        self.file.write_all(bytes)
    }

    /// Cuts the file to so many bytes.
    pub fn truncate(&mut self, bytes: u64) -> io::Result<()> {
        self.disk.before(Operation::Truncate(&self.path, bytes))?;
        self.file.set_len(bytes)
    }

    /// Makes all that was added durable.
    pub fn sync(&mut self) -> io::Result<()> {
        self.disk.before(Operation::SyncFile(&self.path))?;
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_writer_left_is_removed_and_what_a_living_one_writes_is_not() {
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

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left() {
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
