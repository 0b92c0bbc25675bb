//! The keeper's files in the run's folder: its socket, and the record of how its program ended.

use super::protocol::Status;
use crate::processes::Process;
use plimsoll_files::{Disk, check_entry, read_trusted};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Size limit of the record; real ones are far smaller.
const LONGEST: Bytes = Bytes::mib(1);

/// How long to wait for a keeper to exit.
const LEAVING: Duration = Duration::from_secs(2);

/// How a program ended, as recorded by its keeper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct End {
    /// The number of the attempt.
    pub(crate) attempt: u32,
    /// The exit status.
    pub(crate) status: Status,
    /// When, in seconds since 1970, UTC.
    pub(crate) time_s: f64,
    /// Bytes of its output in the log; `None` until all of it is there.
    #[serde(default)]
    pub(crate) logged_bytes: Option<u64>,
}

impl End {
    fn path(folder: &Path, worker: usize) -> PathBuf {
        folder.join(format!("end-{worker}.json"))
    }

    /// Reads the record of a worker's attempt; `None` if there is none.
    pub(crate) fn read(folder: &Path, worker: usize, attempt: u32) -> Option<Self> {
        let bytes = read_trusted(&Self::path(folder, worker), LONGEST).ok()?;
        serde_json::from_slice::<Self>(&bytes).ok().filter(|end| end.attempt == attempt)
    }

    /// Reads the record once the log is complete too. Waits for a keeper that is exiting, up to a time limit.
    pub(crate) fn complete(folder: &Path, worker: usize, attempt: u32, keeper: Option<&Process>) -> Option<Self> {
        let start = Instant::now();
        loop {
            let is_leaving = keeper.is_some_and(Process::is_alive);
            let end = Self::read(folder, worker, attempt)?;
            if end.logged_bytes.is_some() || !is_leaving || start.elapsed() > LEAVING {
                return Some(end);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Writes the record. Errors: those of the system; then only a connected supervisor learns of the end.
    pub(super) fn write(&self, folder: &Path, worker: usize) -> io::Result<()> {
        let text = serde_json::to_vec(self).expect("plain data");
        Disk::default().replace(&Self::path(folder, worker), &text)
    }

    /// Removes the record after the supervisor has handled the end.
    pub(crate) fn forget(folder: &Path, worker: usize) {
        // A leftover record belongs to an old attempt and is ignored.
        let _ = fs::remove_file(Self::path(folder, worker));
    }
}

fn name(worker: usize) -> String {
    format!("keeper-{worker}.sock")
}

/// Creates the socket for supervisors. Errors: those of the system.
pub(super) fn listen(folder: &Path, worker: usize) -> io::Result<UnixListener> {
    let _ = fs::remove_file(folder.join(name(worker)));
    let (_open, path) = short(folder, worker)?;
    UnixListener::bind(path)
}

/// Connects to a worker's keeper. Errors: there is none, or its socket may belong to another user.
pub(super) fn connect(folder: &Path, worker: usize) -> io::Result<UnixStream> {
    check_entry(&folder.join(name(worker)))?;
    let (_open, path) = short(folder, worker)?;
    UnixStream::connect(path)
}

/// Removes the socket at the end of a run.
pub(crate) fn remove(folder: &Path, worker: usize) {
    let _ = fs::remove_file(folder.join(name(worker)));
}

/// A short path of the socket. Socket addresses hold about a hundred bytes, but paths of folders may be longer, so on
/// Linux the path goes through a descriptor of the folder, which must stay open.
fn short(folder: &Path, worker: usize) -> io::Result<(File, PathBuf)> {
    use std::os::fd::AsRawFd;
    let open = File::open(folder)?;
    let folder = match cfg!(target_os = "linux") {
        true => PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd())),
        false => folder.to_owned(),
    };
    Ok((open, folder.join(name(worker))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_keeper_is_reached_in_a_folder_with_a_long_path() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let long = folder.path().join("x".repeat(200));
        fs::create_dir(&long).expect("made");
        assert!(connect(&long, 0).is_err());
        for _ in 0..2 {
            // A second listener replaces the socket of a killed keeper.
            let listener = listen(&long, 0).expect("bound");
            connect(&long, 0).expect("connected");
            listener.accept().expect("accepted");
        }
        remove(&long, 0);
        assert!(connect(&long, 0).is_err());
    }
}
