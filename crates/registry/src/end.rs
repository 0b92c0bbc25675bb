//! The record of how a program ended. The program's keeper writes it, so that the exit code is known although the
//! supervisor was killed.

use crate::processes::Process;
use plimsoll_files::{Disk, read_trusted};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Size limit of the record; real ones are far smaller.
const LONGEST: Bytes = Bytes::mib(1);

/// How long to wait for a keeper to exit.
const LEAVING: Duration = Duration::from_secs(2);

/// The exit status of a process. Both fields are `None` if it is unknown because the keeper is gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitStatus {
    /// The exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

/// How a program ended, as recorded by its keeper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgramEnd {
    /// The number of the attempt.
    pub attempt: u32,
    /// The exit status.
    pub status: ExitStatus,
    /// When the program ended, in seconds since 1970, UTC.
    pub time_s: f64,
    /// Bytes of its output in the log; `None` until all of it is there.
    #[serde(default)]
    pub logged_bytes: Option<u64>,
}

impl ProgramEnd {
    fn path(folder: &Path, worker: usize) -> PathBuf {
        folder.join(format!("end-{worker}.json"))
    }

    /// Reads the record of a worker's attempt; `None` if there is none.
    pub fn read(folder: &Path, worker: usize, attempt: u32) -> Option<Self> {
        let bytes = read_trusted(&Self::path(folder, worker), LONGEST).ok()?;
        serde_json::from_slice::<Self>(&bytes).ok().filter(|end| end.attempt == attempt)
    }

    /// Reads the record once the log is complete too. Waits for a keeper that is exiting, up to a time limit.
    pub fn complete(folder: &Path, worker: usize, attempt: u32, keeper: Option<&Process>) -> Option<Self> {
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
    pub fn write(&self, folder: &Path, worker: usize) -> io::Result<()> {
        let text = serde_json::to_vec(self).expect("plain data");
        Disk::default().replace(&Self::path(folder, worker), &text)
    }

    /// Removes the record after the supervisor has handled the end.
    pub fn forget(folder: &Path, worker: usize) {
        // A leftover record belongs to an old attempt and is ignored.
        let _ = fs::remove_file(Self::path(folder, worker));
    }
}
