//! A file that grows by whole pieces: a piece torn by a full disk is cut off before the next one.

use plimsoll_files::{Disk, Log};
use std::io;
use std::path::Path;

/// An open file.
#[derive(Debug)]
pub(crate) struct Appender {
    log: Log,
    /// Length of the valid part.
    whole: u64,
    is_torn: bool,
}

impl Appender {
    /// Opens a file and cuts it to its valid length, as returned by `sound`.
    pub(crate) fn open(disk: &Disk, path: &Path, sound: impl FnOnce(&mut Log) -> io::Result<u64>) -> io::Result<Self> {
        let mut log = disk.open_log(path)?;
        let whole = sound(&mut log)?;
        if log.file().metadata()?.len() > whole {
            log.truncate(whole)?;
        }
        Ok(Self { log, whole, is_torn: false })
    }

    /// Length of the file.
    pub(crate) fn len(&self) -> u64 {
        self.whole
    }

    /// Appends a piece, whole or not at all.
    pub(crate) fn append(&mut self, piece: &[u8]) -> io::Result<()> {
        if self.is_torn {
            self.log.truncate(self.whole)?;
        }
        let written = self.log.append(piece);
        self.is_torn = written.is_err();
        if written.is_ok() {
            self.whole += piece.len() as u64;
        } else if self.log.truncate(self.whole).is_ok() {
            // Concurrent readers also see whole pieces.
            self.is_torn = false;
        }
        written
    }
}
