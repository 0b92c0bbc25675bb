//! Where a keeper is found, and where it leaves how its program ended: files in the run's folder.

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

/// Far more than such a file has.
const LONGEST: Bytes = Bytes::mib(1);

/// How long a keeper may take to leave.
const LEAVING: Duration = Duration::from_secs(2);

/// How a program ended, as its keeper saw it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct End {
    /// Which attempt.
    pub(crate) attempt: u32,
    /// How.
    pub(crate) status: Status,
    /// When, in seconds since 1970, UTC.
    pub(crate) time_s: f64,
    /// How many bytes of its output are in the log, once all is there that will be.
    #[serde(default)]
    pub(crate) logged_bytes: Option<u64>,
}

impl End {
    fn path(folder: &Path, worker: usize) -> PathBuf {
        folder.join(format!("end-{worker}.json"))
    }

    /// Of a worker's attempt; `None` if no keeper saw it.
    pub(crate) fn read(folder: &Path, worker: usize, attempt: u32) -> Option<Self> {
        let bytes = read_trusted(&Self::path(folder, worker), LONGEST).ok()?;
        serde_json::from_slice::<Self>(&bytes).ok().filter(|end| end.attempt == attempt)
    }

    /// The same, once its output is in the log too. Waits for a keeper that is about to leave, and not for long.
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

    /// Errors: what the system says; the end is then known to a supervisor that listens, and to no later one.
    pub(super) fn write(&self, folder: &Path, worker: usize) -> io::Result<()> {
        let text = serde_json::to_vec(self).expect("plain data");
        Disk::default().replace(&Self::path(folder, worker), &text)
    }

    /// It was judged.
    pub(crate) fn forget(folder: &Path, worker: usize) {
        // One that stays is of an attempt that nobody asks about.
        let _ = fs::remove_file(Self::path(folder, worker));
    }
}

fn name(worker: usize) -> String {
    format!("keeper-{worker}.sock")
}

/// Waits for supervisors. Errors: what the system says.
pub(super) fn listen(folder: &Path, worker: usize) -> io::Result<UnixListener> {
    let _ = fs::remove_file(folder.join(name(worker)));
    let (_open, path) = short(folder, worker)?;
    UnixListener::bind(path)
}

/// Reaches a worker's keeper. Errors: there is none, or its socket may be another user's.
pub(super) fn connect(folder: &Path, worker: usize) -> io::Result<UnixStream> {
    check_entry(&folder.join(name(worker)))?;
    let (_open, path) = short(folder, worker)?;
    UnixStream::connect(path)
}

/// No keeper will be looked for again.
pub(crate) fn remove(folder: &Path, worker: usize) {
    let _ = fs::remove_file(folder.join(name(worker)));
}

/// The socket's path. Addresses have room for about a hundred bytes, folders' names for more: where the system lets the
/// folder be named by its descriptor, it is, as long as that is open.
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
    fn a_keeper_is_reached_in_folders_of_long_names() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let long = folder.path().join("x".repeat(200));
        fs::create_dir(&long).expect("made");
        assert!(connect(&long, 0).is_err());
        for _ in 0..2 {
            // As after a keeper that was killed.
            let listener = listen(&long, 0).expect("bound");
            connect(&long, 0).expect("connected");
            listener.accept().expect("it came");
        }
        remove(&long, 0);
        assert!(connect(&long, 0).is_err());
    }
}
