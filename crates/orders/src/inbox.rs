//! The side of the run: makes the file, and reads what was added to it.

use crate::{FILE, FULL, LONGEST_LINE, Order};
use plimsoll_files::{check_file, open_own};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Bytes that are read at a look.
const LOOK: u64 = 64 << 10;

/// What a look found.
#[derive(Debug, PartialEq, Eq)]
pub struct Looked {
    /// Orders and their numbers, in their order.
    pub orders: Vec<(u64, Order)>,
    /// Why the file is not read any more; told once.
    pub lost: Option<String>,
}

/// The orders that a run is given.
#[derive(Debug)]
pub struct Inbox {
    path: PathBuf,
    /// Which file it is, so that no other in its place is believed.
    identity: Identity,
    /// Up to where it was read.
    read: u64,
    is_lost: bool,
}

impl Inbox {
    /// From now on: what was asked of a run before is not asked of this one. Makes the file, which nobody else may write to.
    /// Errors: what the system says; the file is another user's, or others may write to it.
    pub fn open(run: &Path) -> io::Result<Self> {
        let path = run.join(FILE);
        // Old orders are nobody's, and with few of them a new file is no longer than it must be.
        if fs::symlink_metadata(&path).is_ok_and(|found| found.is_file() && found.len() > FULL.0 / 2) {
            fs::remove_file(&path)?;
        }
        make(&path)?;
        let file = open_own(&path)?;
        check_file(&file, &path)?;
        let found = file.metadata()?;
        Ok(Self { path, identity: Identity::of(&found), read: found.len(), is_lost: false })
    }

    /// What was asked since the last look. Where nothing was, that costs one question to the system.
    pub fn look(&mut self) -> Looked {
        let mut looked = Looked { orders: vec![], lost: None };
        if self.is_lost {
            return looked;
        }
        if let Err(error) = self.read(&mut looked.orders) {
            self.is_lost = true;
            looked.lost = Some(error.to_string());
        }
        looked
    }

    fn read(&mut self, orders: &mut Vec<(u64, Order)>) -> io::Result<()> {
        let found = fs::symlink_metadata(&self.path)?;
        if Identity::of(&found) != self.identity {
            return Err(io::Error::other("it is another file than the run made"));
        }
        if found.len() < self.read {
            return Err(io::Error::other("it is shorter than it was"));
        }
        if found.len() == self.read {
            return Ok(());
        }
        let mut file = File::open(&self.path)?;
        // What was looked at by its name may be gone by now.
        if Identity::of(&file.metadata()?) != self.identity {
            return Err(io::Error::other("it is another file than the run made"));
        }
        check_file(&file, &self.path)?;
        file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = Vec::new();
        file.take(LOOK).read_to_end(&mut bytes)?;
        let mut start = 0;
        while let Some(length) = bytes[start..].iter().position(|&byte| byte == b'\n') {
            let line = &bytes[start..start + length];
            if length <= LONGEST_LINE
                && let Ok(order) = serde_json::from_slice(line)
            {
                orders.push((self.read + start as u64, order));
            }
            start += length + 1;
        }
        // The beginning of a line waits for its end, unless that makes it too long for an order.
        let rest = bytes.len() - start;
        self.read += if rest > LONGEST_LINE { bytes.len() } else { start } as u64;
        Ok(())
    }
}

/// Makes a file that only this user may read and write, if there is none.
fn make(path: &Path) -> io::Result<()> {
    let mut options = File::options();
    options.append(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map(drop),
    }
}

/// Which file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity(u64, u64);

impl Identity {
    #[cfg(unix)]
    fn of(found: &fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        Self(found.dev(), found.ino())
    }

    /// Systems without such numbers don't tell.
    #[cfg(not(unix))]
    fn of(_: &fs::Metadata) -> Self {
        Self(0, 0)
    }
}
