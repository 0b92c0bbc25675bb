//! A worker's output in a log of limited size. If the disk is full, output is lost, but nothing here returns an error.

use plimsoll_units::Bytes;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Space to leave free on the disk, so that the run's small records still fit.
const LEFT_FREE: Bytes = Bytes::mib(1);

/// Fraction (1/N) of a small file system to leave free, if that is less.
const LEFT_FREE_PART: u64 = 4;

/// The file, and the previous one with the suffix `.1`.
#[derive(Debug)]
pub(crate) struct OutputLog {
    path: PathBuf,
    file: Option<File>,
    /// Size of the file.
    length: u64,
    /// Size limit of both files together.
    max_bytes: u64,
    /// Bytes appended since it was opened.
    written: u64,
    reason: Option<String>,
}

impl OutputLog {
    /// Appends to an existing file, or creates it.
    pub(crate) fn new(path: &Path, max_bytes: u64) -> Self {
        let mut log = Self { path: path.to_owned(), file: None, length: 0, max_bytes, written: 0, reason: None };
        // If it can't be opened now, the first write tries again.
        let _ = log.open();
        log
    }

    /// Appends bytes.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        let half = (self.max_bytes / 2).max(1);
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.length >= half {
                self.rotate();
            }
            let room = usize::try_from(half.saturating_sub(self.length).max(1)).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(rest.len().min(room));
            if let Err(error) = self.leave_room(now.len()).and_then(|()| self.write(now)) {
                self.reason.get_or_insert_with(|| error.to_string());
                return;
            }
            rest = later;
        }
    }

    /// Checks that the disk has room for `bytes` more. Errors: it has not.
    fn leave_room(&self, bytes: usize) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        // Try to write if the file system does not report its free space.
        let Ok(free) = plimsoll_files::free_space(folder) else { return Ok(()) };
        let kept = self.length + free.0;
        let left = LEFT_FREE.0.min(kept / LEFT_FREE_PART);
        match free.0 < left.saturating_add(bytes as u64) {
            true => Err(ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }

    /// Bytes appended since it was opened.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Why bytes were first lost; `None` if none were.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    fn open(&mut self) -> io::Result<&mut File> {
        if self.file.is_none() {
            let file = plimsoll_files::open_own(&self.path)?;
            self.length = file.metadata()?.len();
            self.file = Some(file);
        }
        Ok(self.file.as_mut().expect("it was opened"))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        let file = self.open()?;
        let mut written = Ok(());
        while !rest.is_empty() {
            match file.write(rest) {
                Ok(0) => written = Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => written = Err(error),
            }
            if written.is_err() {
                break;
            }
        }
        self.length += (bytes.len() - rest.len()) as u64;
        self.written += (bytes.len() - rest.len()) as u64;
        written
    }

    /// Replaces the previous file with this one. If that fails, appends to this one.
    fn rotate(&mut self) {
        if fs::rename(&self.path, before(&self.path)).is_ok() {
            self.file = None;
        }
        self.length = 0;
    }
}

/// Path of the previous file.
fn before(path: &Path) -> PathBuf {
    let mut before = path.to_owned().into_os_string();
    before.push(".1");
    before.into()
}

/// The last `count` bytes of a log, or fewer if it is shorter or can't be read.
pub(crate) fn last_bytes(path: &Path, count: usize) -> Vec<u8> {
    let mut last = Vec::new();
    for path in [path, &before(path)] {
        let wanted = count - last.len();
        let read = || {
            let mut file = File::open(path)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(wanted as u64)))?;
            let mut bytes = Vec::new();
            file.take(wanted as u64).read_to_end(&mut bytes)?;
            Ok::<_, io::Error>(bytes)
        };
        last.splice(..0, read().unwrap_or_default());
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_bytes_are_kept_within_the_limit() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("output.log");
        let printed = (0..1000_u32).flat_map(|n| format!("{n}\n").into_bytes()).collect::<Vec<_>>();
        for piece in printed.chunks(7) {
            // Reopen it each time, as a new supervisor does.
            OutputLog::new(&path, 400).append(piece);
        }
        let kept = [folder.path().join("output.log.1"), path].map(|path| fs::read(path).expect("kept")).concat();
        assert!(kept.len() <= 400 && kept.len() >= 200, "{}", kept.len());
        assert!(printed.ends_with(&kept));
        for count in [0, 1, 150, 250, 500] {
            let last = last_bytes(&folder.path().join("output.log"), count);
            assert!(printed.ends_with(&last) && last.len() == count.min(kept.len()), "{count}: {}", last.len());
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_loses_bytes_without_an_error() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut log = OutputLog::new(&folder.path().join("none/output.log"), 1 << 20);
        log.append(b"lost");
        assert!(log.reason().is_some());
        fs::create_dir(folder.path().join("none")).expect("a folder");
        log.append(b"kept");
        assert_eq!(fs::read(folder.path().join("none/output.log")).expect("kept"), b"kept");
        let mut full = OutputLog::new(&folder.path().join("full.log"), 1 << 20);
        full.file = Some(File::options().write(true).open("/dev/full").expect("a device"));
        full.append(b"lost too");
        assert_eq!((full.reason().is_some(), full.length), (true, 0));
    }
}
