//! Samples of cards and machine that a run keeps in its folder, whoever trains. Not here: what else is made of a sample
//! (`train/watched.rs`, `supervise/watch.rs`).

use crate::streams::talk;
use plimsoll_files::Disk;
use plimsoll_telemetry::{History, Sample};
use std::io::ErrorKind;
use std::path::Path;

/// The samples on disk, as long as the disk takes them.
pub(super) struct KeptSamples(Option<History>);

impl KeptSamples {
    pub(super) fn open(run: &Path) -> Self {
        let opened = History::open(run, Disk::default());
        Self(opened.map_err(|error| talk(format_args!("note: samples are not kept: {error}"))).ok())
    }

    pub(super) fn append(&mut self, sample: &Sample) {
        let Some(error) = self.0.as_mut().and_then(|history| history.append(sample).err()) else { return };
        self.0 = None;
        // The folder of a run that never began is removed.
        if error.kind() == ErrorKind::NotFound {
            return;
        }
        talk(format_args!("warning: samples of the card and the system are no longer kept: {error}"));
    }
}
