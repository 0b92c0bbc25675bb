//! Which files are trusted. A file that names a command to run or a process to signal is used only if no other user can
//! have written it: the file, its folder and every parent folder belong to this user or to root, and no other user can
//! write to them. Parent folders with the sticky bit, such as `/tmp`, are allowed: other users can't replace entries
//! there.
//! Not here: the contents of files, and opening them (`open.rs`).
//! `PLIMSOLL_TRUSTED_FOLDERS` lists folders, separated as in `PATH`, that are trusted with everything below them: for
//! example a folder of the host in a container, whose owner is not the container's user.

use crate::{open_regular, rest_at_most};
use plimsoll_units::Bytes;
use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

/// The environment variable that lists trusted folders.
pub const TRUSTED_FOLDERS: &str = "PLIMSOLL_TRUSTED_FOLDERS";

/// Why a file or a folder is not trusted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    /// It belongs to a user other than this one and root.
    #[error("{path} belongs to user {uid}")]
    Owner {
        /// The file or folder.
        path: PathBuf,
        /// The user ID.
        uid: u32,
    },
    /// Other users can write to it.
    #[error("other users can write to {path}")]
    Writable {
        /// The file or folder.
        path: PathBuf,
    },
    /// The system can't tell its owner.
    #[error("{path}: {reason}")]
    Unknown {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
}

impl Distrust {
    /// The file or folder that is not trusted.
    pub fn path(&self) -> &Path {
        match self {
            Self::Owner { path, .. } | Self::Writable { path } | Self::Unknown { path, .. } => path,
        }
    }

    fn unknown(path: &Path, error: &io::Error) -> Self {
        Self::Unknown { path: path.to_owned(), reason: error.to_string() }
    }
}

/// Checks that only this user and root can change a folder's entries, or replace the folder or one of its parents.
/// Resolves symbolic links in `folder` first. Errors: the first path, from the root down, that another user controls.
pub fn check_folder(folder: &Path) -> Result<(), Distrust> {
    let folder = folder.canonicalize().map_err(|error| Distrust::unknown(folder, &error))?;
    if is_listed(&folder) {
        return Ok(());
    }
    let mut parents = folder.ancestors().skip(1).collect::<Vec<_>>();
    parents.reverse();
    for parent in parents {
        check_path(parent, Sticky::Accepted)?;
    }
    check_path(&folder, Sticky::Refused)
}

/// Checks that only this user and root can have written an open file. `path`: for the error. Does not check the file's
/// folder.
/// Errors: another user owns the file or can write to it.
pub fn check_file(file: &File, path: &Path) -> Result<(), Distrust> {
    let found = file.metadata().map_err(|error| Distrust::unknown(path, &error))?;
    check_in_folder(&found, path)
}

/// Reads a file that only this user and root can have written. Does not check the file's folder.
/// Errors: those of [`read_at_most`](crate::read_at_most); a [`Distrust`], as `PermissionDenied`.
pub fn read_trusted(path: &Path, limit: Bytes) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    check_file(&file, path)?;
    rest_at_most(file, limit)
}

/// Checks the owner of any kind of file, such as a socket. Checks a symbolic link itself, not its target.
/// Errors: those of [`check_file`]; the path does not exist.
pub fn check_entry(path: &Path) -> Result<(), Distrust> {
    let found = fs::symlink_metadata(path).map_err(|error| Distrust::unknown(path, &error))?;
    check_in_folder(&found, path)
}

fn check_in_folder(found: &Metadata, path: &Path) -> Result<(), Distrust> {
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    match folder.is_some_and(|folder| is_listed(&folder)) {
        true => Ok(()),
        false => check(found, path, Sticky::Refused),
    }
}

impl From<Distrust> for io::Error {
    fn from(why: Distrust) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, why)
    }
}

/// Whether write permission for others is accepted with the sticky bit, which prevents them from replacing entries but
/// not from adding some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sticky {
    Accepted,
    Refused,
}

fn check_path(path: &Path, sticky: Sticky) -> Result<(), Distrust> {
    let found = fs::symlink_metadata(path).map_err(|error| Distrust::unknown(path, &error))?;
    check(&found, path, sticky)
}

/// Whether the user listed a folder or one of its parents as trusted.
fn is_listed(folder: &Path) -> bool {
    let listed = std::env::var_os(TRUSTED_FOLDERS).unwrap_or_default();
    let listed = std::env::split_paths(&listed).filter_map(|listed| listed.canonicalize().ok()).collect::<Vec<_>>();
    listed.iter().any(|listed| folder.starts_with(listed))
}

#[cfg(unix)]
fn check(found: &Metadata, path: &Path, sticky: Sticky) -> Result<(), Distrust> {
    use std::os::unix::fs::MetadataExt;
    const STICKY: u32 = 0o1000;
    let own = rustix::process::geteuid().as_raw();
    if found.uid() != own && found.uid() != 0 {
        return Err(Distrust::Owner { path: path.to_owned(), uid: found.uid() });
    }
    let mode = found.mode();
    let is_sticky = sticky == Sticky::Accepted && mode & STICKY != 0;
    // The mode of a link has no meaning, since a link can't be written to.
    if is_sticky || found.is_symlink() {
        return Ok(());
    }
    let is_shared = || !crate::groups::is_private(found.gid(), own) || has_acl(path);
    let by_group = mode & 0o020 != 0 && is_shared();
    match mode & 0o002 != 0 || by_group {
        true => Err(Distrust::Writable { path: path.to_owned() }),
        false => Ok(()),
    }
}

/// Not checked on other systems, which use inherited access control lists.
#[cfg(not(unix))]
fn check(_: &Metadata, _: &Path, _: Sticky) -> Result<(), Distrust> {
    Ok(())
}

/// Whether a file has an access control list, which may let other users write: its mask replaces the group permissions
/// in the mode. Source: acl(5).
#[cfg(target_os = "linux")]
fn has_acl(path: &Path) -> bool {
    rustix::fs::getxattr(path, "system.posix_acl_access", &mut [0_u8; 0][..]).is_ok_and(|length| length > 0)
}

#[cfg(all(unix, not(target_os = "linux")))]
fn has_acl(_: &Path) -> bool {
    false
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is this user's");
    }

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    #[test]
    fn a_path_that_others_can_write_is_not_trusted() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let shared = root.path().canonicalize().expect("it is there").join("shared");
        let run = shared.join("run");
        fs::create_dir_all(&run).expect("made");
        let file = run.join("process.json");
        fs::write(&file, "{}").expect("written");
        [&shared, &run].into_iter().for_each(|folder| set_mode(folder, 0o755));
        set_mode(&file, 0o644);
        assert_eq!(check_folder(&run), Ok(()));
        let writable = |path: &Path| Err(Distrust::Writable { path: path.to_owned() });
        // Other users could replace the run's folder, unless the sticky bit prevents it.
        set_mode(&shared, 0o777);
        assert_eq!(check_folder(&run), writable(&shared));
        set_mode(&shared, 0o1777);
        assert_eq!(check_folder(&run), Ok(()));
        // In the run's own folder they could add files, even with the sticky bit.
        set_mode(&run, 0o1777);
        assert_eq!(check_folder(&run), writable(&run));
        set_mode(&run, 0o700);
        let open = || File::open(&file).expect("it is there");
        assert_eq!(check_file(&open(), &file), Ok(()));
        set_mode(&file, 0o646);
        assert_eq!(check_file(&open(), &file), writable(&file));
        assert_eq!(check_entry(&file), writable(&file));
        // A link is resolved, so its target is checked.
        let link = root.path().join("link");
        symlink(&run, &link).expect("made");
        set_mode(&run, 0o777);
        assert_eq!(check_folder(&link), writable(&run));
        assert!(matches!(check_folder(&root.path().join("none")), Err(Distrust::Unknown { .. })));
    }

    #[test]
    fn a_path_of_another_user_is_not_trusted() {
        if !is_root() {
            eprintln!("SKIPPED: only root can give files to another user");
            return;
        }
        const OTHER: u32 = 54_321;
        let root = tempfile::tempdir().expect("a temporary folder");
        let root = root.path().canonicalize().expect("it is there");
        let run = root.join("theirs/run");
        fs::create_dir_all(&run).expect("made");
        let file = run.join("process.json");
        fs::write(&file, "{}").expect("written");
        let owner = |path: &Path| Err(Distrust::Owner { path: path.to_owned(), uid: OTHER });
        for path in [&file, &run, &root.join("theirs")] {
            chown(path, Some(OTHER), None).expect("root may");
            let open = File::open(&file).expect("root may");
            match path == &file {
                true => assert_eq!(check_file(&open, &file), owner(&file)),
                false => assert_eq!(check_folder(&run), owner(path)),
            }
            chown(path, Some(0), None).expect("root may");
        }
        assert_eq!(check_folder(&run), Ok(()));
    }
}
