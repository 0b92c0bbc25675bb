//! Free disk space.

use plimsoll_units::Bytes;
use std::io;
use std::path::Path;

/// Free space for this user on the file system of a path, which need not exist yet. Errors: the system can't tell.
pub fn free_space(path: &Path) -> io::Result<Bytes> {
    disk_space(path).map(|space| space.free)
}

/// The size of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// The total size.
    pub total: Bytes,
    /// The free space for this user.
    pub free: Bytes,
}

/// The size of the file system of a path, which need not exist yet. Errors: the system can't tell.
pub fn disk_space(path: &Path) -> io::Result<DiskSpace> {
    let is_there = |folder: &&Path| !folder.as_os_str().is_empty() && folder.exists();
    let nearest = path.ancestors().find(is_there).unwrap_or(Path::new("."));
    of_file_system(nearest)
}

#[cfg(unix)]
fn of_file_system(folder: &Path) -> io::Result<DiskSpace> {
    let found = rustix::fs::statvfs(folder)?;
    let bytes = |blocks: u64| Bytes(blocks.saturating_mul(found.f_frsize));
    Ok(DiskSpace { total: bytes(found.f_blocks), free: bytes(found.f_bavail) })
}

#[cfg(not(unix))]
fn of_file_system(_: &Path) -> io::Result<DiskSpace> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_missing_folder_has_the_free_space_of_its_parent() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let sizes = ["", "a/b/c"].map(|below| free_space(&folder.path().join(below)).expect("the system can tell"));
        assert!(sizes[0] > Bytes::ZERO && sizes[0].0.abs_diff(sizes[1].0) < 1 << 30, "{sizes:?}");
        assert!(free_space(Path::new("nothing/is/here")).is_ok());
    }

    /// The kernel's file systems have no space.
    #[test]
    #[cfg(target_os = "linux")]
    fn each_file_system_has_its_own_space() {
        assert_eq!(free_space(Path::new("/proc/self/status")).expect("the system can tell"), Bytes::ZERO);
    }
}
