//! Creates files with unique names, and replaces files atomically.

use crate::own::parent_of;
use std::collections::hash_map::RandomState;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The extension of a file that is being written.
pub const UNFINISHED: &str = "unfinished";

/// Age after which an unfinished file counts as a leftover.
const LEFTOVER_AGE: Duration = Duration::from_secs(24 * 3600);

/// Creates a new file `PATH.RANDOM.EXTENSION` for writing and reading. `mode`: its permissions before the umask, on
/// Unix.
/// Process and thread IDs would not be unique: containers that share a folder have the same IDs.
/// Errors: those of the system. Never opens an existing file or follows a link.
pub fn create_unique(path: &Path, extension: &str, mode: u32) -> io::Result<(PathBuf, File)> {
    const TRIES: usize = 16;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    let mut last = None;
    for _ in 0..TRIES {
        // The standard library seeds these with random bytes from the system, and offers no other randomness.
        let random = RandomState::new().build_hasher().finish();
        let mut unique = path.as_os_str().to_owned();
        unique.push(format!(".{random:016x}.{extension}"));
        let unique = PathBuf::from(unique);
        match options.open(&unique) {
            Ok(file) => return Ok((unique, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(last.expect("there was a try"))
}

/// Replaces the contents of a file atomically: writes a temporary file next to it, syncs it, and renames it. Follows a
/// link.
/// Writes directly to a path that is not a regular file, such as a pipe or a device.
/// Errors: those of the system; then the old contents stay, and the temporary file is removed.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with(path, |file| file.write_all(bytes))
}

/// The same for contents that `write` writes part by part. Errors: also those of `write`.
pub fn replace_with<E: From<io::Error>>(path: &Path, write: impl FnOnce(&mut File) -> Result<(), E>) -> Result<(), E> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if path.exists() && !path.is_file() {
        return write(&mut OpenOptions::new().write(true).open(&path)?);
    }
    remove_leftovers(&path, SystemTime::now());
    let (unfinished, mut file) = create_unique(&path, UNFINISHED, 0o666)?;
    let written = write(&mut file).and_then(|()| Ok(file.sync_all().and_then(|()| fs::rename(&unfinished, &path))?));
    if written.is_err() {
        // Report the first error rather than a failure to remove the partial file.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Removes temporary files that crashed writes of a file left, with names of [`create_unique`], once they were not
/// written for a day. Ignores errors.
pub fn remove_leftovers(path: &Path, now: SystemTime) {
    let prefix = format!("{}.", path.file_name().unwrap_or_default().to_string_lossy());
    let is_leftover = |name: &str| {
        let random = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(UNFINISHED)?.strip_suffix('.'));
        random.is_some_and(|random| random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    for entry in fs::read_dir(parent_of(path)).into_iter().flatten().flatten() {
        if !entry.file_name().to_str().is_some_and(is_leftover) {
            continue;
        }
        let is_old = |found: fs::Metadata| {
            found.is_file()
                && found.modified().is_ok_and(|time| now.duration_since(time).is_ok_and(|age| age > LEFTOVER_AGE))
        };
        // Check the entry itself, not a link's target: this program creates no links here.
        if entry.metadata().is_ok_and(is_old) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Makes renames in `folder` durable. Does nothing on systems other than Unix, which can't sync a folder.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_keeps_the_old_contents() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("machine.json");
        write_whole(&path, b"before").unwrap();
        let full = replace_with(&path, |file| {
            file.write_all(b"af")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        });
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"before");
        write_whole(&path, b"after").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"after");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a temporary file is left");
    }

    #[test]
    fn leftovers_of_a_crash_are_removed_after_a_day() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("machine.json");
        create_unique(&path, UNFINISHED, 0o600).unwrap();
        let others = ["machine.json.mine.unfinished", "other.json.0123456789abcdef.unfinished", "machine.json.bak"];
        others.iter().for_each(|name| fs::write(folder.path().join(name), "").unwrap());
        let count = || fs::read_dir(folder.path()).unwrap().count();
        remove_leftovers(&path, SystemTime::now());
        assert_eq!(count(), 4, "another process may be writing it");
        remove_leftovers(&path, SystemTime::now() + LEFTOVER_AGE + Duration::from_secs(60));
        assert_eq!(count(), 3);
        assert!(others.iter().all(|name| folder.path().join(name).exists()));
        // Writing the file removes them.
        let (old, file) = create_unique(&path, UNFINISHED, 0o600).unwrap();
        file.set_modified(SystemTime::now() - LEFTOVER_AGE * 2).unwrap();
        write_whole(&path, b"new").unwrap();
        assert!(!old.exists());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn links_are_followed_and_devices_stay_devices() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("file"), folder.path().join("link"));
        write_whole(&path, b"before").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        write_whole(&link, b"after").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"after");
        write_whole(Path::new("/dev/null"), b"gone").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        assert!(write_whole(Path::new("/dev/full"), b"no room").is_err());
    }

    #[test]
    fn names_are_unique_and_permissions_as_requested() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache.tokens");
        let (a, file) = create_unique(&path, "unfinished", 0o600).unwrap();
        let (b, _) = create_unique(&path, "unfinished", 0o600).unwrap();
        assert_ne!(a, b);
        assert!(a.to_str().unwrap().contains("cache.tokens.") && a.extension().unwrap() == "unfinished");
        #[cfg(unix)]
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&file.metadata().unwrap().permissions()) & 0o777, 0o600);
        sync_folder(folder.path()).unwrap();
        assert!(create_unique(&folder.path().join("none/x"), "unfinished", 0o600).is_err());
    }
}
