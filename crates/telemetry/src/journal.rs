//! The journal: a file with one JSON record per line. It survives kills (reopening the file cuts off a torn last line)
//! and full disks (lost events are counted, and training continues).

use crate::{Event, Record, SCHEMA_VERSION, Sink};
use plimsoll_files::{Disk, Log, open_inside};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Far longer than any record; a longer line is not a record.
pub(crate) const LONGEST_LINE: u64 = 1 << 20;

/// Why a journal could not be opened or read.
#[derive(Debug, thiserror::Error)]
#[error("journal {path}: {source}")]
pub struct JournalError {
    /// The file.
    pub path: PathBuf,
    /// The system's error.
    #[source]
    pub source: io::Error,
}

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    log: Log,
    /// The branch of the run for new records.
    branch: u64,
    /// Whether the file may end in the middle of a line.
    is_torn: bool,
    unsynced: u64,
    lost: u64,
    /// The system's error when the last event was lost.
    reason: String,
}

impl Journal {
    /// Opens a journal for appending, and cuts off an incomplete last line. Never follows a link.
    pub fn open(disk: &Disk, path: &Path) -> Result<Self, JournalError> {
        let open = || {
            let mut log = disk.open_log(path)?;
            let (whole, length) = whole_lines(log.file())?;
            if whole < length {
                log.truncate(whole)?;
            }
            Ok(Self { log, branch: 0, is_torn: false, unsynced: 0, lost: 0, reason: String::new() })
        };
        open().map_err(|source| JournalError { path: path.to_owned(), source })
    }

    /// Sets the branch for new records.
    pub fn set_branch(&mut self, branch: u64) {
        self.branch = branch;
    }

    /// Makes all written records durable. If the system refuses, records written since the last sync count as lost: a later
    /// sync does not make them durable.
    pub fn sync(&mut self) {
        if let Err(error) = self.log.sync() {
            // The end of the last line may be lost, too.
            self.is_torn = true;
            self.lose(self.unsynced, &error);
        }
        self.unsynced = 0;
    }

    /// Number of events that could not be written or made durable.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The system's error when the last event was lost.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    fn lose(&mut self, events: u64, error: &io::Error) {
        self.lost += events;
        self.reason = error.to_string();
    }
}

impl Journal {
    /// Appends a record of any type. If the system refuses, it counts as lost.
    pub fn append(&mut self, record: &impl Serialize) {
        let text = serde_json::to_string(record).expect("records are plain data");
        // A line torn by a full disk must not swallow the next line.
        let line = format!("{}{text}\n", if self.is_torn { "\n" } else { "" });
        let written = self.log.append(line.as_bytes());
        self.is_torn = written.is_err();
        match written {
            Ok(()) => self.unsynced += 1,
            Err(error) => self.lose(1, &error),
        }
    }
}

impl Sink for Journal {
    fn take(&mut self, event: &Event) {
        let record = Record { v: SCHEMA_VERSION, time_s: now_s(), branch: self.branch, event: event.clone() };
        self.append(&record);
    }
}

/// The current time in seconds since 1970, UTC, as in records.
pub fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// The end of the last complete line, and of the file. Reads backward, since journals are long.
fn whole_lines(file: &mut File) -> io::Result<(u64, u64)> {
    const BLOCK: u64 = 1 << 16;
    let length = file.seek(SeekFrom::End(0))?;
    let mut end = length;
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        let mut block = vec![0; (end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut block)?;
        if let Some(newline) = block.iter().rposition(|&b| b == b'\n') {
            return Ok((start + newline as u64 + 1, length));
        }
        end = start;
    }
    Ok((0, length))
}

/// All valid records of a journal, in order; skips lines of another schema, torn lines and endless lines. Errors: the
/// file can't be read.
pub fn read_journal(path: &Path) -> Result<Vec<Record>, JournalError> {
    let mut records = Vec::new();
    for_each_record(path, |record| records.push(record))?;
    Ok(records)
}

/// Like [`read_journal`], one record at a time.
pub fn for_each_record(path: &Path, mut take: impl FnMut(Record)) -> Result<(), JournalError> {
    let mut read = || {
        read_lines(BufReader::new(open_inside(path, 1)?), |line| {
            record_of(line, SCHEMA_VERSION).into_iter().for_each(&mut take);
        })
    };
    read().map_err(|source| JournalError { path: path.to_owned(), source })
}

/// Parses the record of a line; `None` if it is not a record of this schema.
pub(crate) fn record_of<E: DeserializeOwned>(line: &[u8], schema: u32) -> Option<Record<E>> {
    serde_json::from_slice::<Record<E>>(line).ok().filter(|record| record.v == schema)
}

/// Passes on lines with their line ends; an overlong line is passed in pieces, which are not records.
pub(crate) fn read_lines(mut lines: impl BufRead, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let mut line = Vec::new();
    while (&mut lines).take(LONGEST_LINE).read_until(b'\n', &mut line)? > 0 {
        take(&line);
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_files::{Operation, Watch};
    use std::io::Write;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn event(step: u64) -> Event {
        Event::Evaluated { step, loss: 1.5, average_loss: None, tokens: 10 }
    }

    fn steps(path: &Path) -> Vec<Event> {
        read_journal(path).expect("readable").into_iter().map(|record| record.event).collect()
    }

    #[test]
    fn records_read_back_and_a_torn_line_is_cut_off() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("journal.jsonl");
        let disk = Disk::default();
        Journal::open(&disk, &path).expect("a new journal").take(&event(1));
        // Torn lines that are longer than one read, and shorter.
        for torn in ["{\"v\":1,\"ev".to_owned(), "x".repeat(200_000)] {
            let mut file = File::options().append(true).open(&path).expect("a file");
            file.write_all(torn.as_bytes()).expect("appended");
            Journal::open(&disk, &path).expect("an old journal");
            assert_eq!(std::fs::read_to_string(&path).expect("text").lines().count(), 1);
        }
        let mut journal = Journal::open(&disk, &path).expect("an old journal");
        journal.take(&event(2));
        assert_eq!((steps(&path), journal.lost()), (vec![event(1), event(2)], 0));
    }

    /// A disk that is full at times: it writes half of a line before it fails.
    #[derive(Debug)]
    struct Full(AtomicBool);

    impl Watch for Full {
        fn before(&self, operation: Operation<'_>) -> io::Result<()> {
            if !self.0.load(Ordering::Relaxed) {
                return Ok(());
            }
            if let Operation::Append(path, bytes) = operation {
                File::options().append(true).open(path)?.write_all(&bytes[..bytes.len() / 2])?;
            }
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    #[test]
    fn a_full_disk_loses_only_the_events_that_did_not_fit() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("journal.jsonl");
        let full = Arc::new(Full(AtomicBool::new(false)));
        let mut journal = Journal::open(&Disk::watched(full.clone()), &path).expect("a new journal");
        for step in 1..=6 {
            full.0.store([2, 3, 5].contains(&step), Ordering::Relaxed);
            journal.take(&event(step));
        }
        assert_eq!((steps(&path), journal.lost()), ([1, 4, 6].map(event).to_vec(), 3));
        assert!(!journal.reason().is_empty());
        full.0.store(true, Ordering::Relaxed);
        journal.sync();
        assert_eq!(journal.lost(), 6, "events that are not durable may be lost");
    }

    /// After a failed sync, systems drop the data that they could not write, even if a later sync succeeds.
    #[test]
    fn records_after_a_failed_sync_do_not_share_a_line_with_lost_data() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("journal.jsonl");
        let full = Arc::new(Full(AtomicBool::new(false)));
        let mut journal = Journal::open(&Disk::watched(full.clone()), &path).expect("a new journal");
        journal.take(&event(1));
        full.0.store(true, Ordering::Relaxed);
        journal.sync();
        full.0.store(false, Ordering::Relaxed);
        let hole = std::fs::read(&path).expect("a journal").len();
        journal.take(&event(2));
        journal.sync();
        assert_eq!(journal.lost(), 1);
        let mut contents = std::fs::read(&path).expect("a journal");
        contents[..hole].fill(0);
        std::fs::write(&path, contents).expect("written");
        assert_eq!(steps(&path), [event(2)]);
    }

    #[test]
    fn foreign_lines_are_skipped() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("journal.jsonl");
        let endless = vec![b'['; 3 << 20];
        let foreign = b"\xff\xfe\n{}\nnull\n{\"v\":99,\"time_s\":0,\"event\":\"finished\",\"step\":1,\"seconds\":1}\n";
        std::fs::write(&path, [&foreign[..], &endless, b"\n"].concat()).expect("written");
        assert_eq!(read_journal(&path).expect("readable"), vec![]);
        Journal::open(&Disk::default(), &path).expect("a journal").take(&event(1));
        assert_eq!(steps(&path), [event(1)]);
    }
}
