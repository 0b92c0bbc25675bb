//! Opens and reads files from untrusted paths.

use crate::encoding::text;
use crate::read_at::read_exact_at;
use plimsoll_units::Bytes;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// The path is not a regular file. Inner error of an [`io::Error`] of kind `InvalidInput`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is {found}, not a regular file")]
pub struct NotRegular {
    /// The type of file, with an article: `a named pipe`.
    pub found: &'static str,
}

/// The file exceeds its size limit. Inner error of an [`io::Error`] of kind `FileTooLarge`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is longer than {limit}")]
pub struct TooLong {
    /// The limit.
    pub limit: Bytes,
}

/// The file is a pointer that Git LFS left instead of a file that it did not download. Inner error of an [`io::Error`]
/// of kind `InvalidData`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is a Git LFS pointer, not the file itself; run `git lfs pull` in its repository")]
pub struct LfsPointer;

/// The start of a pointer, and the length limit of pointers. Source: git-lfs, `docs/spec.md`.
const LFS_VERSION: &[u8] = b"version https://git-lfs.github.com/spec/v1";
const LFS_BYTES_MAX: u64 = 1024;

/// Opens a regular file for reading. Never blocks, neither for the writer of a pipe nor for a device.
/// Errors: those of the system; `LfsPointer`; `NotRegular` for anything else, including kernel files (`/proc`, `/sys`),
/// which have no length and may block or never end.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Opening a device may have effects, so check the path first. Check the open file again.
    check(&fs::metadata(path)?)?;
    open_regular_with(path, false)
}

/// Opens a checked path. With `reject_links`, fails if the path has become a link.
pub(crate) fn open_regular_with(path: &Path, reject_links: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        let links = if reject_links { OFlags::NOFOLLOW } else { OFlags::empty() };
        options.custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY | links).bits() as i32);
    }
    #[cfg(not(unix))]
    let _ = reject_links;
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    check(&metadata)?;
    check_file_system(&file)?;
    let mut start = [0; LFS_VERSION.len()];
    if (start.len() as u64..LFS_BYTES_MAX).contains(&metadata.len()) && read_exact_at(&file, &mut start, 0).is_ok() {
        check_pointer(&start)?;
    }
    Ok(file)
}

/// Reads the text of any path, including a pipe or a terminal, up to `limit` bytes. For paths that a user names
/// explicitly.
/// May block.
/// Errors: those of the system; `TooLong`; `LfsPointer`; `Utf16`; `InvalidData` if it is not UTF-8.
pub fn read_any_text(path: &Path, limit: Bytes) -> io::Result<String> {
    let bytes = rest_at_most(File::open(path)?, limit)?;
    check_pointer(&bytes)?;
    text(bytes)
}

/// Errors: `LfsPointer`.
fn check_pointer(bytes: &[u8]) -> io::Result<()> {
    match bytes.starts_with(LFS_VERSION) && (bytes.len() as u64) < LFS_BYTES_MAX {
        true => Err(io::Error::new(io::ErrorKind::InvalidData, LfsPointer)),
        false => Ok(()),
    }
}

/// Reads a regular file of at most `limit` bytes.
/// Errors: those of [`open_regular`]; `TooLong`, without reading more than the limit.
pub fn read_at_most(path: &Path, limit: Bytes) -> io::Result<Vec<u8>> {
    rest_at_most(open_regular(path)?, limit)
}

/// Reads the text of a regular file of at most `limit` bytes.
/// Errors: those of [`read_at_most`]; `Utf16`; `InvalidData` if it is not UTF-8.
pub fn read_text(path: &Path, limit: Bytes) -> io::Result<String> {
    text(read_at_most(path, limit)?)
}

/// Reads the rest of an open file, at most `limit` bytes.
/// Errors: those of the system; `TooLong`, without reading more than the limit.
pub fn rest_at_most(file: File, limit: Bytes) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit.0.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit.0 {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, TooLong { limit }));
    }
    Ok(bytes)
}

pub(crate) fn check(metadata: &Metadata) -> io::Result<()> {
    match metadata.is_file() {
        true => Ok(()),
        false => Err(not_regular(kind_of(metadata))),
    }
}

pub(crate) fn not_regular(found: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, NotRegular { found })
}

fn kind_of(metadata: &Metadata) -> &'static str {
    if metadata.is_dir() {
        return "a folder";
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let kind = metadata.file_type();
        if kind.is_fifo() {
            return "a named pipe";
        } else if kind.is_socket() {
            return "a socket";
        } else if kind.is_char_device() || kind.is_block_device() {
            return "a device";
        }
    }
    "a special file"
}

/// Rejects kernel file systems, which report their files as regular. Sources: `man 2 statfs`, `linux/magic.h`.
#[cfg(target_os = "linux")]
fn check_file_system(file: &File) -> io::Result<()> {
    const KERNELS: [(u64, &str); 6] = [
        (0x9fa0, "a file of /proc"),
        (0x6265_6572, "a file of /sys"),
        (0x6462_6720, "a file of the kernel's debugfs"),
        (0x7472_6163, "a file of the kernel's tracefs"),
        (0x6367_7270, "a file of the kernel's cgroups"),
        (0x7363_6673, "a file of the kernel's securityfs"),
    ];
    let magic = rustix::fs::fstatfs(file)?.f_type as u64;
    KERNELS.iter().find(|(known, _)| *known == magic).map_or(Ok(()), |(_, found)| Err(not_regular(found)))
}

#[cfg(not(target_os = "linux"))]
fn check_file_system(_: &File) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_above_the_limit_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read_text(&path, Bytes(5)).unwrap(), "12345");
        let error = read_at_most(&path, Bytes(4)).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::FileTooLarge, "it is longer than 4 B"));
        fs::write(&path, b"\xff").unwrap();
        assert_eq!(read_text(&path, Bytes(5)).unwrap_err().kind(), io::ErrorKind::InvalidData);
        #[cfg(unix)]
        assert_eq!(read_any_text(Path::new("/dev/zero"), Bytes(5)).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(open_regular(&folder.path().join("b")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_git_lfs_pointer_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:07\nsize 988097824\n";
        fs::write(&path, pointer).unwrap();
        let is_pointer = |error: io::Error| error.get_ref().is_some_and(|inner| inner.is::<LfsPointer>());
        assert!(is_pointer(open_regular(&path).unwrap_err()));
        assert!(is_pointer(read_any_text(&path, Bytes::mib(1)).unwrap_err()));
        assert!(is_pointer(crate::read_text_inside(&path, 1, Bytes::mib(1)).unwrap_err()));
        // A longer text, or one with another start, is not a pointer.
        for text in [pointer.repeat(20), format!("\n{pointer}"), "version https://git-lfs".to_owned()] {
            fs::write(&path, &text).unwrap();
            assert_eq!(read_text(&path, Bytes::mib(1)).unwrap(), text);
            assert_eq!(read_any_text(&path, Bytes::mib(1)).unwrap(), text);
        }
    }

    /// A kernel file that waits for events or never ends would hang this test.
    #[cfg(target_os = "linux")]
    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let found = |path: &Path| open_regular(path).unwrap_err().to_string();
        let pipe = folder.path().join("pipe.txt");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
        assert_eq!(found(&pipe), "it is a named pipe, not a regular file");
        assert_eq!(found(folder.path()), "it is a folder, not a regular file");
        assert_eq!(found(Path::new("/dev/zero")), "it is a device, not a regular file");
        assert_eq!(found(Path::new("/proc/self/environ")), "it is a file of /proc, not a regular file");
        let linked = folder.path().join("link");
        std::os::unix::fs::symlink("/proc/self/pagemap", &linked).unwrap();
        assert_eq!(found(&linked), "it is a file of /proc, not a regular file");
    }
}
