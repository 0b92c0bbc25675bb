//! Opens files that belong to this program, in folders that may have come from somebody else.

use crate::open::{check, not_regular};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Opens a file for reading and for adding to its end, and makes it if there is none. Never follows a link, and never
/// waits. Errors: what the system says; `NotRegular` for a link and for everything else that is no file.
pub fn open_own(path: &Path) -> io::Result<File> {
    open_with(path, 0o666)
}

/// Like [`open_own`]; only this user can read a file that it makes. Elsewhere than on Unix, it has the folder's permissions.
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

/// Whether something has this name. Errors: the system does not say; that is not the same as nothing.
pub fn is_there(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a path leads to a regular file. Errors: the system does not say.
pub fn is_file(path: &Path) -> io::Result<bool> {
    kind(path).map(|found| found.is_some_and(|found| found.is_file()))
}

/// Whether a path leads to a folder. Errors: the system does not say.
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

/// Whether an error says that there is nothing of that name; what is below a file is not there either.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// The folder that something lies in.
pub(crate) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}
