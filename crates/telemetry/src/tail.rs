//! Reads a growing journal: each read returns the records added since the last one.
//! Not here: reading a journal once (`journal.rs`).
//!
//! ```text
//!   |{...}\n{...}\n{...}\n{"v":1,"ti        an incomplete line is left for the next read
//!    ───── taken ─────┤ at
//!              ─ seam ┤               the last bytes read: if they have changed, it is a different journal
//! ```

use crate::journal::{LONGEST_LINE, read_lines, record_of};
use crate::{JournalError, Record};
use plimsoll_files::{open_inside, read_exact_at};
use serde::de::DeserializeOwned;
use std::fs::Metadata;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Bytes compared to detect a replaced journal: some records, with their times.
const SEAM: u64 = 1024;

/// Reads a growing journal.
#[derive(Debug, Clone)]
pub struct Tail {
    path: PathBuf,
    /// The schema version of its records.
    schema: u32,
    /// The file that was read last.
    file: Option<FileId>,
    /// Offset of the next read: the end of a complete line.
    at: u64,
    /// The last bytes before `at`.
    seam: Vec<u8>,
}

/// What happened to a journal since the last read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalChange {
    /// Nothing was added.
    Same,
    /// Lines were added, and handed out.
    Appended,
    /// The journal was replaced, truncated or rewritten. Nothing was handed out; the next read starts at its beginning.
    Replaced,
}

type FileId = (u64, u64);

#[cfg(unix)]
fn file_id(metadata: &Metadata) -> FileId {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

/// On other systems, a replaced file is detected by its length and bytes alone.
#[cfg(not(unix))]
fn file_id(_: &Metadata) -> FileId {
    (0, 0)
}

impl Tail {
    /// Follows the journal at a path, whose records have this schema version. Reads nothing yet.
    pub fn new(path: &Path, schema: u32) -> Self {
        Self { path: path.to_owned(), schema, file: None, at: 0, seam: vec![] }
    }

    /// The journal's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the next read start at the beginning.
    pub fn rewind(&mut self) {
        (self.file, self.at) = (None, 0);
        self.seam.clear();
    }

    /// Hands out the added records. Skips lines that are not records.
    /// Errors: the file can't be read; the next read continues after the last record handed out.
    pub fn read<E: DeserializeOwned>(&mut self, take: impl FnMut(Record<E>)) -> Result<JournalChange, JournalError> {
        self.try_read(take).map_err(|source| JournalError { path: self.path.clone(), source })
    }

    fn try_read<E: DeserializeOwned>(&mut self, mut take: impl FnMut(Record<E>)) -> io::Result<JournalChange> {
        let mut file = open_inside(&self.path, 1)?;
        let metadata = file.metadata()?;
        let id = file_id(&metadata);
        let is_other = self.file.is_some_and(|known| known != id) || metadata.len() < self.at;
        if is_other || !self.has_seam(&file)? {
            self.rewind();
            return Ok(JournalChange::Replaced);
        }
        self.file = Some(id);
        if metadata.len() == self.at {
            return Ok(JournalChange::Same);
        }
        let before = self.at;
        file.seek(SeekFrom::Start(self.at))?;
        // Lines added during this read are left for the next one: otherwise a continuous writer would keep this loop
        // busy forever.
        let added = BufReader::new(file.take(metadata.len() - self.at));
        read_lines(added, |line| {
            let is_whole = line.ends_with(b"\n") || line.len() as u64 >= LONGEST_LINE;
            if !is_whole {
                return;
            }
            self.at += line.len() as u64;
            self.seam.extend_from_slice(&line[line.len().saturating_sub(SEAM as usize)..]);
            self.seam.drain(..self.seam.len().saturating_sub(SEAM as usize));
            record_of(line, self.schema).into_iter().for_each(&mut take);
        })?;
        Ok(if self.at == before { JournalChange::Same } else { JournalChange::Appended })
    }

    /// Whether the last bytes read are unchanged.
    fn has_seam(&self, file: &std::fs::File) -> io::Result<bool> {
        let mut there = vec![0; self.seam.len()];
        read_exact_at(file, &mut there, self.at - self.seam.len() as u64)?;
        Ok(there == self.seam)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, SCHEMA_VERSION};
    use std::fs::{self, File};
    use std::io::Write;

    fn line(step: u64) -> String {
        format!("{{\"v\":1,\"time_s\":1.5,\"event\":\"interrupted\",\"step\":{step}}}\n")
    }

    struct Case {
        _folder: tempfile::TempDir,
        path: PathBuf,
        tail: Tail,
    }

    impl Case {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let path = folder.path().join("journal.jsonl");
            let tail = Tail::new(&path, SCHEMA_VERSION);
            Self { _folder: folder, path, tail }
        }

        fn append(&self, text: &str) {
            let mut file = File::options().append(true).create(true).open(&self.path).expect("a file");
            file.write_all(text.as_bytes()).expect("appended");
        }

        fn read(&mut self) -> (JournalChange, Vec<u64>) {
            let mut steps = vec![];
            let change = self.tail.read(|record: Record| match record.event {
                Event::Interrupted { step } => steps.push(step),
                other => panic!("{other:?}"),
            });
            (change.expect("readable"), steps)
        }
    }

    #[test]
    fn added_records_are_read_once_and_partial_lines_when_complete() {
        let mut case = Case::new();
        assert!(case.tail.read(|_: Record| ()).is_err(), "it does not exist yet");
        let whole = line(1) + &line(2) + &line(3);
        for byte in whole.bytes() {
            case.append(std::str::from_utf8(&[byte]).expect("plain letters"));
            let expected = if byte == b'\n' { JournalChange::Appended } else { JournalChange::Same };
            let (grown, steps) = case.read();
            assert_eq!((grown, steps.len()), (expected, usize::from(byte == b'\n')));
        }
        case.append(&(line(4) + "\n{}\nnull\n\u{1b}[2J\n" + &line(5).replace("\"v\":1", "\"v\":2") + &line(6)));
        assert_eq!(case.read(), (JournalChange::Appended, vec![4, 6]));
        assert_eq!(case.read(), (JournalChange::Same, vec![]));
    }

    #[test]
    fn a_replaced_journal_is_read_from_its_beginning() {
        let mut case = Case::new();
        case.append(&(line(1) + &line(2)));
        assert_eq!(case.read(), (JournalChange::Appended, vec![1, 2]));
        // Truncated, then grown past the last offset.
        fs::write(&case.path, line(3)).expect("written");
        assert_eq!(case.read(), (JournalChange::Replaced, vec![]));
        assert_eq!(case.read(), (JournalChange::Appended, vec![3]));
        fs::write(&case.path, line(4) + &line(5)).expect("written");
        assert_eq!(case.read(), (JournalChange::Replaced, vec![]), "as long as before and longer, with other bytes");
        assert_eq!(case.read(), (JournalChange::Appended, vec![4, 5]));
        // A different file with the same beginning.
        fs::write(case.path.with_extension("new"), line(4) + &line(5) + &line(6)).expect("written");
        fs::rename(case.path.with_extension("new"), &case.path).expect("renamed");
        assert_eq!(case.read(), (JournalChange::Replaced, vec![]));
        assert_eq!(case.read(), (JournalChange::Appended, vec![4, 5, 6]));
        fs::remove_file(&case.path).expect("it was there");
        assert!(case.tail.read(|_: Record| ()).is_err());
    }

    /// An endless line uses no memory, and is skipped once it ends.
    #[test]
    fn a_line_without_end_is_skipped() {
        let mut case = Case::new();
        case.append(&("x".repeat(3 << 20) + "\n" + &line(7)));
        assert_eq!(case.read(), (JournalChange::Appended, vec![7]));
        case.append(&"[".repeat(1 << 20));
        assert_eq!(case.read(), (JournalChange::Appended, vec![]), "a piece longer than any record");
        case.append(&("]\n".to_owned() + &line(8)));
        assert_eq!(case.read(), (JournalChange::Appended, vec![8]));
    }
}
