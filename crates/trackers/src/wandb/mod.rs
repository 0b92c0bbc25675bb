//! W&B's offline runs: a folder with a log of records, which its own program syncs. A resumed session goes on in the same log,
//! from which the steps that are made again, and whatever a crash left of its last record, are cut off before.
//!
//! ```text
//!   wandb/offline-run-20261123_184354-z4t19e2k/run-z4t19e2k.wandb    records (`log.rs`, `records.rs`)
//!                                             /sync.log              what the program said (`sync.rs`)
//! ```

mod log;
mod records;
mod sync;

pub use sync::{SyncError, Synced, sync_in_background};

use crate::appender::Appender;
use crate::calendar::stamp;
use crate::place::Ids;
use crate::row::Row;
use crate::writer::{Begin, End, Standing, WriteError, Writer};
use plimsoll_files::Disk;
use records::Records;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The folder in a run's logs.
pub(crate) const FOLDER: &str = "wandb";

/// Rows between two summaries, which say the newest value of each metric.
const SUMMARY_EVERY: usize = 64;

pub(crate) struct Wandb {
    file: Appender,
    records: Records,
    rows: usize,
}

impl Wandb {
    pub(crate) fn open(disk: &Disk, begin: &Begin) -> Result<Self, WriteError> {
        let place = begin.place()?;
        let run = run_folder(&place.folder, &place.ids);
        disk.create_folders(&run)?;
        let path = run.join(format!("run-{}.wandb", place.ids.wandb));
        let mut kept = log::Kept::default();
        let mut file = Appender::open(disk, &path, |log| {
            kept = log::keep(log.file(), |record| records::is_before(record, begin.first_step))?;
            Ok(kept.bytes)
        })?;
        // It is to be synced again.
        disk.remove_if_there(&path.with_extension("wandb.synced"))?;
        let mut records = Records::new(kept.records, kept.history, place.ids.began_s);
        let mut bytes = log::Encoder::at(file.len());
        records.begin(&mut bytes, begin, &place.ids);
        file.append(bytes.as_bytes())?;
        Ok(Self { file, records, rows: 0 })
    }
}

/// The folder of a run that syncs: that of an earlier session, or a new one.
fn run_folder(logs: &Path, ids: &Ids) -> PathBuf {
    let folder = logs.join(FOLDER);
    let of_run = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.strip_prefix("offline-run-")
            .is_some_and(|name| name.split_once('-').is_some_and(|(_, id)| id == ids.wandb))
    };
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found = entries.filter(of_run).collect::<Vec<_>>();
    found.sort();
    found.into_iter().next().unwrap_or_else(|| folder.join(format!("offline-run-{}-{}", stamp(ids.began_s), ids.wandb)))
}

/// Where a run lies that W&B's program syncs.
pub(crate) fn synced_folder(logs: &Path, ids: &Ids) -> PathBuf {
    run_folder(logs, ids)
}

impl Writer for Wandb {
    fn write(&mut self, rows: &[Arc<Row>]) -> Result<(), WriteError> {
        let (mut bytes, mut records) = (log::Encoder::at(self.file.len()), self.records.clone());
        for row in rows {
            records.row(&mut bytes, row);
        }
        let is_summed_up = self.rows + rows.len() >= SUMMARY_EVERY;
        if is_summed_up {
            records.summary(&mut bytes);
        }
        self.file.append(bytes.as_bytes())?;
        // Of what is not on disk nothing counts.
        self.records = records;
        self.rows = if is_summed_up { 0 } else { self.rows + rows.len() };
        Ok(())
    }

    fn end(&mut self, end: End) -> Result<(), WriteError> {
        let code = match end.standing {
            Standing::Finished => 0,
            Standing::Stopped => 130,
            Standing::Failed => 1,
        };
        let mut bytes = log::Encoder::at(self.file.len());
        self.records.summary(&mut bytes);
        self.records.exit(&mut bytes, code, end.time_s);
        Ok(self.file.append(bytes.as_bytes())?)
    }
}
