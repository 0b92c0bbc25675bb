//! Whose files are believed. A file that says which command to run or which process to signal counts only if no other user
//! can have written it: the file, its folder and every parent folder belong to this user or to root, and no other user
//! can write to them. Parent folders with the sticky bit, such as `/tmp`, are fine: other users can't replace entries there.
//! Not here: what the file says, and how files are opened (`open.rs`).
//!
//! `PLIMSOLL_TRUSTED_FOLDERS` lists folders, separated as in `PATH`, that are trusted with everything below them: a
//! folder of the host in a container, for instance, whose owner is not the container's user.

use crate::{open_regular, rest_at_most};
use plimsoll_units::Bytes;
use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

/// The variable that lists trusted folders.
pub const TRUSTED_FOLDERS: &str = "PLIMSOLL_TRUSTED_FOLDERS";

/// Why a file or a folder is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    /// It belongs to another user, who is not root.
    #[error("{path} belongs to user {uid}")]
    Owner {
        /// The file or folder.
        path: PathBuf,
        /// The number of the user.
        uid: u32,
    },
    /// Other users can write to it.
    #[error("other users can write to {path}")]
    Writable {
        /// The file or folder.
        path: PathBuf,
    },
    /// The system doesn't say whose it is.
    #[error("{path}: {reason}")]
    Unknown {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
}

impl Distrust {
    /// The file or folder that is the reason.
    pub fn path(&self) -> &Path {
        match self {
            Self::Owner { path, .. } | Self::Writable { path } | Self::Unknown { path, .. } => path,
        }
    }

    fn unknown(path: &Path, error: &io::Error) -> Self {
        Self::Unknown { path: path.to_owned(), reason: error.to_string() }
    }
}

/// Checks that only this user and root can change what is in a folder, or replace the folder or one of its parents.
/// Symbolic links in `folder` are resolved first. Errors: the first path, from the root down, that another user controls.
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

/// Checks that only this user and root can have written an open file. `path`: its name, for the error.
/// It says nothing about the file's folder. Errors: another user owns the file or can write to it.
pub fn check_file(file: &File, path: &Path) -> Result<(), Distrust> {
    let found = file.metadata().map_err(|error| Distrust::unknown(path, &error))?;
    check_in_folder(&found, path)
}

/// The bytes of a file that only this user and root can have written. It says nothing about the file's folder.
/// Errors: those of [`read_at_most`](crate::read_at_most); a [`Distrust`], as `PermissionDenied`.
pub fn read_trusted(path: &Path, limit: Bytes) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    check_file(&file, path)?;
    rest_at_most(file, limit)
}

/// Checks the owner of whatever has this name: a socket, for instance. A symbolic link is checked itself.
/// Errors: as [`check_file`]; nothing has this name.
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

/// Whether the sticky bit makes up for others' right to write: it keeps them from replacing entries, not from adding some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sticky {
    Accepted,
    Refused,
}

fn check_path(path: &Path, sticky: Sticky) -> Result<(), Distrust> {
    let found = fs::symlink_metadata(path).map_err(|error| Distrust::unknown(path, &error))?;
    check(&found, path, sticky)
}

/// Whether the user listed a folder, or one above it, as trusted.
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
    // The mode of a link means nothing: a link can't be written to.
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

/// Other systems keep who may write in lists that folders hand down.
#[cfg(not(unix))]
fn check(_: &Metadata, _: &Path, _: Sticky) -> Result<(), Distrust> {
    Ok(())
}

/// Whether an access control list may let users write whom the mode doesn't show: its mask takes the place of the group's
/// permissions. Source: acl(5).
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
    fn what_others_can_write_is_not_believed() {
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
        // Others could rename the run away and put another in its place, unless the sticky bit keeps them from it.
        set_mode(&shared, 0o777);
        assert_eq!(check_folder(&run), writable(&shared));
        set_mode(&shared, 0o1777);
        assert_eq!(check_folder(&run), Ok(()));
        // In the run's own folder they could add files, sticky bit or not.
        set_mode(&run, 0o1777);
        assert_eq!(check_folder(&run), writable(&run));
        set_mode(&run, 0o700);
        let open = || File::open(&file).expect("it is there");
        assert_eq!(check_file(&open(), &file), Ok(()));
        set_mode(&file, 0o646);
        assert_eq!(check_file(&open(), &file), writable(&file));
        assert_eq!(check_entry(&file), writable(&file));
        // A link is resolved, so its target is what is checked.
        let link = root.path().join("link");
        symlink(&run, &link).expect("made");
        set_mode(&run, 0o777);
        assert_eq!(check_folder(&link), writable(&run));
        assert!(matches!(check_folder(&root.path().join("none")), Err(Distrust::Unknown { .. })));
    }

    #[test]
    fn what_another_user_owns_is_not_believed() {
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
