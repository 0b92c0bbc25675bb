//! Samples of cards and system that are kept in a run's folder. Not here: what else a sample is used for (`watched.rs`).

use plimsoll_files::Disk;
use plimsoll_telemetry::{History, Sample};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Samples on disk, until the disk refuses one.
pub struct KeptSamples(Option<History>);

impl KeptSamples {
    /// Opens the history of samples in a run's folder, on this disk. If that fails nothing is kept, and the error says why.
    pub fn open(run: &Path, disk: &Disk) -> (Self, Option<io::Error>) {
        match History::open(run, disk.clone()) {
            Ok(history) => (Self(Some(history)), None),
            Err(error) => (Self(None), Some(error)),
        }
    }

    /// Adds a sample. Returns the error after which no more samples are kept, once.
    pub fn append(&mut self, sample: &Sample) -> Option<io::Error> {
        let error = self.0.as_mut()?.append(sample).err()?;
        self.0 = None;
        // The folder of a run that never began is removed.
        (error.kind() != ErrorKind::NotFound).then_some(error)
    }
}
