//! What a worker printed, in a file of limited size. A disk that is full costs what it had no room for, and nothing else:
//! nothing here fails.

use plimsoll_units::Bytes;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// What is left free where the log is, so that the run's records, which are small, still have room.
const LEFT_FREE: Bytes = Bytes::mib(1);

/// Part of a small file system that is left free, where that is less.
const LEFT_FREE_PART: u64 = 4;

/// The file, and the one before it under the same name with `.1`.
#[derive(Debug)]
pub(crate) struct OutputLog {
    path: PathBuf,
    file: Option<File>,
    /// Bytes of the file.
    length: u64,
    /// Bytes of both files, at the most.
    most: u64,
    /// Bytes that were added.
    written: u64,
    reason: Option<String>,
}

impl OutputLog {
    /// Goes on where the file ends, if there is one.
    pub(crate) fn new(path: &Path, most: u64) -> Self {
        let mut log = Self { path: path.to_owned(), file: None, length: 0, most, written: 0, reason: None };
        // A file that can't be opened now is tried again when there is something to write.
        let _ = log.open();
        log
    }

    /// Adds bytes to the end.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        let half = (self.most / 2).max(1);
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

    /// Errors: there is too little room for so many bytes.
    fn leave_room(&self, bytes: usize) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        // A file system that does not tell has what it has.
        let Ok(free) = plimsoll_files::free_space(folder) else { return Ok(()) };
        let kept = self.length + free.0;
        let left = LEFT_FREE.0.min(kept / LEFT_FREE_PART);
        match free.0 < left.saturating_add(bytes as u64) {
            true => Err(ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }

    /// How many bytes were added since it was opened.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Why bytes were lost, the first time; `None` if none were.
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

    /// Puts the file in the place of the one before it. If that fails, it grows on.
    fn rotate(&mut self) {
        if fs::rename(&self.path, before(&self.path)).is_ok() {
            self.file = None;
        }
        self.length = 0;
    }
}

/// The file before this one.
fn before(path: &Path) -> PathBuf {
    let mut before = path.to_owned().into_os_string();
    before.push(".1");
    before.into()
}

/// The last bytes that a log has, so many at the most. What can't be read is left out.
pub(crate) fn last_bytes(path: &Path, most: usize) -> Vec<u8> {
    let mut last = Vec::new();
    for path in [path, &before(path)] {
        let wanted = most - last.len();
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
            // As a supervisor that was started again.
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
    fn a_full_disk_costs_bytes_and_nothing_else() {
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
