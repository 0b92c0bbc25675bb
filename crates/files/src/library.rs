//! Checks the file of a shared library before loading it. The system's loader maps a truncated library anyway, and
//! reading past its end raises a signal. With a pipe, the loader waits for a writer.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Why a library must not be loaded; `None` if it may be, or if it does not exist. `name`: a path, or a name without a
/// folder that the loader searches for. Knows libraries of 64-bit Linux only.
pub fn library_problem(name: &OsStr) -> Option<String> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let path = found_by_loader(Path::new(name))?;
    match problem_of(&path) {
        Ok(problem) => problem.map(|problem| format!("{} {problem}", path.display())),
        // Let the loader report the error.
        Err(_) => None,
    }
}

/// The file that the loader opens for a name: the first match in its folders, as far as they are known.
fn found_by_loader(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 || name.is_absolute() {
        return Some(name.to_owned());
    }
    let first = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let usual = [
        "/lib/x86_64-linux-gnu",
        "/usr/lib/x86_64-linux-gnu",
        "/lib/aarch64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/lib64",
        "/usr/lib64",
        "/lib",
        "/usr/lib",
    ];
    let folders = std::env::split_paths(&first).chain(usual.map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|path| path.exists())
}

/// The problem of a file that the loader would open anyway. Source: the ELF-64 object file format, version 1.5.
fn problem_of(path: &Path) -> io::Result<Option<String>> {
    let found = path.metadata()?;
    if !found.is_file() {
        return Ok(Some("is not a regular file".to_owned()));
    }
    let mut file = File::open(path)?;
    let mut header = [0; 64];
    file.read_exact(&mut header)?;
    let is_known = header.starts_with(b"\x7fELF") && header[4..6] == [2, 1];
    if !is_known {
        return Ok(None);
    }
    let (length, entry) = (found.len(), u64::from(u16_at(&header, 54)));
    let table = u64_at(&header, 32);
    let table_end = table.saturating_add(entry * u64::from(u16_at(&header, 56)));
    let mut end = table_end;
    if table_end <= length && entry >= 56 {
        file.seek(SeekFrom::Start(table))?;
        let mut segments = vec![0; (table_end - table) as usize];
        file.read_exact(&mut segments)?;
        let ends = segments.chunks_exact(entry as usize).filter(|segment| is_mapped(segment));
        let ends = ends.map(|segment| u64_at(segment, 8).saturating_add(u64_at(segment, 32)));
        end = ends.fold(end, u64::max);
    }
    Ok((end > length).then(|| format!("is cut off: it has {length} of {end} bytes")))
}

/// Whether the loader maps or reads a segment: `PT_LOAD`, `PT_DYNAMIC`.
fn is_mapped(segment: &[u8]) -> bool {
    matches!(segment[..4], [1 | 2, 0, 0, 0])
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
mod tests {
    use super::*;

    /// A library that certainly exists: this test's executable, which has the same format.
    fn whole() -> Vec<u8> {
        std::fs::read(std::env::current_exe().expect("a test has a path")).expect("it can be read")
    }

    fn problem(contents: &[u8]) -> Option<String> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("library.so");
        std::fs::write(&path, contents).expect("written");
        library_problem(path.as_os_str())
    }

    #[test]
    fn a_truncated_library_is_reported() {
        let whole = whole();
        assert_eq!(problem(&whole), None);
        for kept in [64, 100, 1000, 10_000] {
            let found = problem(&whole[..kept]).unwrap_or_else(|| panic!("{kept} bytes are accepted as a library"));
            assert!(found.contains(&format!("is cut off: it has {kept} of ")), "{found}");
        }
    }

    /// The loader reports these files itself.
    #[test]
    fn files_that_are_not_libraries_are_left_to_the_loader() {
        for contents in [&b""[..], b"\x7fELF", b"text that is longer than the header of a library, which has 64 bytes"]
        {
            assert_eq!(problem(contents), None);
        }
        assert_eq!(library_problem("/nowhere/library.so".as_ref()), None);
        assert_eq!(library_problem("no-such-library.so".as_ref()), None);
    }

    #[test]
    fn invalid_offsets_are_handled() {
        let mut wrong = whole();
        wrong[32..40].fill(0xff);
        assert!(problem(&wrong).is_some());
        let mut wrong = whole();
        wrong[54..58].fill(0xff);
        assert!(problem(&wrong[..4096]).is_some());
        wrong[54..58].fill(0);
        assert_eq!(problem(&wrong), None);
    }

    #[test]
    fn only_regular_files_are_libraries() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let found = library_problem(folder.path().as_os_str()).expect("a folder is not a library");
        assert!(found.ends_with("is not a regular file"), "{found}");
        assert!(library_problem("/dev/zero".as_ref()).is_some());
    }
}
