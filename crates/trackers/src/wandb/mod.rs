//! W&B's offline runs: a folder with a log of records, which W&B's program syncs. A resumed session continues the same
//! log, after cutting off the steps that it repeats and a record torn by a crash.
//!
//! ```text
//!   wandb/offline-run-20261123_184354-z4t19e2k/run-z4t19e2k.wandb    records (`log.rs`, `records.rs`)
//!                                             /sync.log              output of the program (`sync.rs`)
//! ```

mod log;
mod records;
mod sync;

pub use sync::{SyncError, Synced, sync_in_background};

use crate::appender::Appender;
use crate::calendar::stamp;
use crate::row::Row;
use crate::run_logs::Ids;
use crate::writer::{Begin, End, SessionStatus, WriteError, Writer};
use plimsoll_files::Disk;
use records::Records;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The folder in a run's logs.
pub(crate) const FOLDER: &str = "wandb";

/// Rows between two summaries, which contain the newest value of each metric.
const SUMMARY_EVERY: usize = 64;

pub(crate) struct Wandb {
    file: Appender,
    records: Records,
    rows: usize,
}

impl Wandb {
    pub(crate) fn open(disk: &Disk, begin: &Begin) -> Result<Self, WriteError> {
        let logs = begin.logs()?;
        let run = run_folder(&logs.folder, &logs.ids);
        disk.create_folders(&run)?;
        let path = run.join(format!("run-{}.wandb", logs.ids.wandb));
        let mut kept = log::Kept::default();
        let mut file = Appender::open(disk, &path, |log| {
            kept = log::keep(log.file(), |record| records::is_before(record, begin.first_step))?;
            Ok(kept.bytes)
        })?;
        // It must be synced again.
        disk.remove_if_there(&path.with_extension("wandb.synced"))?;
        let mut records = Records::new(kept.records, kept.history, logs.ids.began_s);
        let mut bytes = log::Encoder::at(file.len());
        records.begin(&mut bytes, begin, &logs.ids);
        file.append(bytes.as_bytes())?;
        Ok(Self { file, records, rows: 0 })
    }
}

/// The folder of the run: an earlier session's, or a new one.
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

/// The path of the run that W&B's program syncs.
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
        // Records that are not on disk do not count.
        self.records = records;
        self.rows = if is_summed_up { 0 } else { self.rows + rows.len() };
        Ok(())
    }

    fn end(&mut self, end: End) -> Result<(), WriteError> {
        let code = match end.status {
            SessionStatus::Finished => 0,
            SessionStatus::Stopped => 130,
            SessionStatus::Failed => 1,
        };
        let mut bytes = log::Encoder::at(self.file.len());
        self.records.summary(&mut bytes);
        self.records.exit(&mut bytes, code, end.time_s);
        Ok(self.file.append(bytes.as_bytes())?)
    }
}
