//! Opens this program's own files, in folders that may come from another user.

use crate::open::{check, not_regular};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Opens a file for reading and appending, or creates it. Never follows a link and never blocks.
/// Errors: those of the system; `NotRegular` for a link or anything else that is not a regular file.
pub fn open_own(path: &Path) -> io::Result<File> {
    open_with(path, 0o666)
}

/// Like [`open_own`], but a new file is readable by this user only. On systems other than Unix, it has the folder's
/// permissions.
pub fn open_private(path: &Path) -> io::Result<File> {
    open_with(path, 0o600)
}

fn open_with(path: &Path, mode: u32) -> io::Result<File> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => return Err(not_regular("a symbolic link")),
        Ok(found) => check(&found)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true);
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(mode).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32);
    }
    #[cfg(not(unix))]
    let _ = mode;
    let file = options.open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

/// Whether a path exists. Errors: the system can't tell, which is not the same as a missing path.
pub fn is_there(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a path leads to a regular file. Errors: the system can't tell.
pub fn is_file(path: &Path) -> io::Result<bool> {
    kind(path).map(|found| found.is_some_and(|found| found.is_file()))
}

/// Whether a path leads to a folder. Errors: the system can't tell.
pub fn is_folder(path: &Path) -> io::Result<bool> {
    kind(path).map(|found| found.is_some_and(|found| found.is_dir()))
}

fn kind(path: &Path) -> io::Result<Option<fs::Metadata>> {
    match fs::metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether an error means that a path does not exist. A path below a file does not exist either.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// The parent folder of a path.
pub(crate) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}
