//! The journal: a file of one JSON record a line. It survives kills (a torn last line is cut off when the file is
//! opened again) and full disks (what could not be written is counted, and training goes on).

use crate::{Event, Record, SCHEMA_VERSION, Sink};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Why a journal could not be opened or read.
#[derive(Debug, thiserror::Error)]
#[error("journal {path}: {source}")]
pub struct JournalError {
    /// The file.
    pub path: PathBuf,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    file: File,
    lost: u64,
}

impl Journal {
    /// Opens a journal to append to it, and cuts off a last line that was not finished.
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        let error = |source| JournalError { path: path.to_owned(), source };
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(error)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(error)?;
        let whole = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |newline| newline + 1);
        file.set_len(whole as u64).map_err(error)?;
        file.seek(SeekFrom::End(0)).map_err(error)?;
        Ok(Self { file, lost: 0 })
    }

    /// Events that could not be written.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

impl Sink for Journal {
    fn take(&mut self, event: &Event) {
        let time_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
        let record = Record { v: SCHEMA_VERSION, time_s, event: event.clone() };
        let mut line = serde_json::to_string(&record).expect("events are plain data");
        line.push('\n');
        if self.file.write_all(line.as_bytes()).is_err() {
            self.lost += 1;
        }
    }
}

/// All records of a journal that can be read, in order; lines of another schema or torn ones are passed over.
pub fn read_journal(path: &Path) -> Result<Vec<Record>, JournalError> {
    let text = std::fs::read(path).map_err(|source| JournalError { path: path.to_owned(), source })?;
    let lines = text.split(|&b| b == b'\n');
    Ok(lines.filter_map(|line| serde_json::from_slice::<Record>(line).ok()).filter(|r| r.v == SCHEMA_VERSION).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(step: u64) -> Event {
        Event::Evaluated { step, loss: 1.5, average_loss: None, tokens: 10 }
    }

    #[test]
    fn what_is_written_is_read_and_a_torn_line_is_cut_off() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("journal.jsonl");
        Journal::open(&path).expect("a new journal").take(&event(1));
        OpenOptions::new().append(true).open(&path).and_then(|mut f| f.write_all(b"{\"v\":1,\"ev")).expect("appended");
        let mut journal = Journal::open(&path).expect("an old journal");
        journal.take(&event(2));
        let events = read_journal(&path).expect("readable").into_iter().map(|r| r.event).collect::<Vec<_>>();
        assert_eq!((events, journal.lost()), (vec![event(1), event(2)], 0));
        assert_eq!(std::fs::read_to_string(&path).expect("text").lines().count(), 2);
    }

    #[test]
    fn a_full_disk_is_counted_and_not_fatal() {
        let Ok(file) = OpenOptions::new().write(true).open("/dev/full") else {
            eprintln!("SKIPPED: this machine has no /dev/full");
            return;
        };
        let mut journal = Journal { file, lost: 0 };
        journal.take(&event(1));
        assert_eq!(journal.lost(), 1);
    }

    #[test]
    fn foreign_lines_are_passed_over() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("journal.jsonl");
        std::fs::write(
            &path,
            b"\xff\xfe\n{}\nnull\n{\"v\":99,\"time_s\":0,\"event\":\"finished\",\"step\":1,\"seconds\":1}\n",
        )
        .expect("written");
        assert_eq!(read_journal(&path).expect("readable"), vec![]);
    }
}
