//! The run's side: creates the file and reads new orders.

use crate::{FILE, FULL, LONGEST_LINE, Order};
use plimsoll_files::{check_file, open_own};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Bytes per read.
const READ_BYTES: u64 = 64 << 10;

/// New orders.
#[derive(Debug, PartialEq, Eq)]
pub struct NewOrders {
    /// The orders with their numbers, in order.
    pub orders: Vec<(u64, Order)>,
    /// Why the file is no longer read. Returned once.
    pub lost: Option<String>,
}

/// Reads the orders to a run.
#[derive(Debug)]
pub struct Inbox {
    path: PathBuf,
    /// The identity of the file, to reject a replacement.
    identity: Identity,
    /// The offset up to which it was read.
    read: u64,
    is_lost: bool,
}

impl Inbox {
    /// Opens the file, or creates it with write access for this user only. Ignores earlier orders.
    /// Errors: those of the system; other users own the file or may write to it.
    pub fn open(run: &Path) -> io::Result<Self> {
        let path = run.join(FILE);
        // Earlier orders are obsolete, so remove a large file.
        if fs::symlink_metadata(&path).is_ok_and(|found| found.is_file() && found.len() > FULL.0 / 2) {
            fs::remove_file(&path)?;
        }
        make(&path)?;
        let file = open_own(&path)?;
        check_file(&file, &path)?;
        let found = file.metadata()?;
        Ok(Self { path, identity: Identity::of(&found), read: found.len(), is_lost: false })
    }

    /// Returns orders since the last call. Costs one system call if there are none.
    pub fn poll(&mut self) -> NewOrders {
        let mut new = NewOrders { orders: vec![], lost: None };
        if self.is_lost {
            return new;
        }
        if let Err(error) = self.read(&mut new.orders) {
            self.is_lost = true;
            new.lost = Some(error.to_string());
        }
        new
    }

    fn read(&mut self, orders: &mut Vec<(u64, Order)>) -> io::Result<()> {
        let found = fs::symlink_metadata(&self.path)?;
        if Identity::of(&found) != self.identity {
            return Err(io::Error::other("the file was replaced"));
        }
        if found.len() < self.read {
            return Err(io::Error::other("the file was truncated"));
        }
        if found.len() == self.read {
            return Ok(());
        }
        let mut file = File::open(&self.path)?;
        // The path may lead to another file by now.
        if Identity::of(&file.metadata()?) != self.identity {
            return Err(io::Error::other("the file was replaced"));
        }
        check_file(&file, &self.path)?;
        file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = Vec::new();
        file.take(READ_BYTES).read_to_end(&mut bytes)?;
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
        // Keep an unfinished line for the next call, unless it is too long for an order.
        let rest = bytes.len() - start;
        self.read += if rest > LONGEST_LINE { bytes.len() } else { start } as u64;
        Ok(())
    }
}

/// Creates a file that only this user may read and write, if there is none.
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

/// The identity of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity(u64, u64);

impl Identity {
    #[cfg(unix)]
    fn of(found: &fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        Self(found.dev(), found.ino())
    }

    /// Not available on this system.
    #[cfg(not(unix))]
    fn of(_: &fs::Metadata) -> Self {
        Self(0, 0)
    }
}
