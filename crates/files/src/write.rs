//! Makes files under names that nobody else has, and makes their names last.

use std::collections::hash_map::RandomState;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::path::{Path, PathBuf};

/// Makes the file `PATH.RANDOM.EXTENSION`, which did not exist before, for writing and reading. `mode` are the
/// permissions it is made with, less those that the process's mask takes away; only Unix has them.
///
/// Numbers of processes and threads do not tell writers apart: two containers that share a folder count both from 1.
/// Errors: what the system says. An existing file is never opened, and a link never followed.
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
        // The standard library seeds these from the system, the only randomness that it gives out.
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

/// Makes a rename inside `folder` outlive a power cut. Only Unix can sync a folder; elsewhere nothing is done.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_permissions_those_asked_for() {
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
