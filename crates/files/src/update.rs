//! A small file that several processes change.

use crate::{open_own, read_text, sync_folder, write_whole};
use plimsoll_units::Bytes;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

/// The text of a file; `None` if there is no file, or its folder is none. Errors: those of the system; it is longer than `longest`.
pub fn read_if_there(path: &Path, longest: Bytes) -> io::Result<Option<String>> {
    match read_text(path, longest) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        text => text.map(Some),
    }
}

/// Replaces a file by what `change` makes of its text (see [`read_if_there`]), atomically and durably, while no other process does
/// so: a lock is held next to the file. Makes its folder if there is none. Errors: those of the system.
pub fn update(
    path: &Path,
    longest: Bytes,
    change: impl FnOnce(io::Result<Option<String>>) -> io::Result<String>,
) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let lock = open_own(&path.with_extension("lock"))?;
    lock.lock()?;
    let text = change(read_if_there(path, longest))?;
    write_whole(path, text.as_bytes())?;
    sync_folder(folder)
}
