//! How much a disk has room for.

use plimsoll_units::Bytes;
use std::io;
use std::path::Path;

/// Bytes that this user may still write to the file system on which a path lies, or would lie once it is made.
/// Errors: the system does not say.
pub fn free_space(path: &Path) -> io::Result<Bytes> {
    disk_space(path).map(|space| space.free)
}

/// A file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// All of it.
    pub total: Bytes,
    /// What this user may still write.
    pub free: Bytes,
}

/// The file system on which a path lies, or would lie once it is made. Errors: the system does not say.
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
    fn a_folder_that_is_not_made_yet_has_the_room_of_the_one_that_it_will_lie_in() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let sizes = ["", "a/b/c"].map(|below| free_space(&folder.path().join(below)).expect("the system says"));
        assert!(sizes[0] > Bytes::ZERO && sizes[0].0.abs_diff(sizes[1].0) < 1 << 30, "{sizes:?}");
        assert!(free_space(Path::new("nothing/is/here")).is_ok());
    }

    /// The kernel's own files take no room, and there is none.
    #[test]
    #[cfg(target_os = "linux")]
    fn each_file_system_is_asked_for_itself() {
        assert_eq!(free_space(Path::new("/proc/self/status")).expect("the system says"), Bytes::ZERO);
    }
}
