//! A journal that is read as it grows: each time, what was added since the last.
//! Not here: reading one once (`journal.rs`).
//!
//! ```text
//!   |{...}\n{...}\n{...}\n{"v":1,"ti        a line that is being written is left for the next time
//!    ───── taken ─────┤ at
//!              ─ seam ┤               what stood there last time: if it does not any more, it is another journal
//! ```

use crate::journal::{LONGEST_LINE, read_lines, record_of};
use crate::{JournalError, Record};
use plimsoll_files::{open_inside, read_exact_at};
use serde::de::DeserializeOwned;
use std::fs::Metadata;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Bytes that are compared, to see that what was read is there still: some records, with their times.
const SEAM: u64 = 1024;

/// A journal that is read as it grows.
#[derive(Debug, Clone)]
pub struct Tail {
    path: PathBuf,
    /// The version of the schema that its records have.
    schema: u32,
    /// The file that was read.
    file: Option<FileId>,
    /// Bytes that were read: whole lines.
    at: u64,
    /// The last of them.
    seam: Vec<u8>,
}

/// What has become of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grown {
    /// Nothing was added.
    Same,
    /// Lines were added, and taken.
    Appended,
    /// It is not the one that was read any more: replaced, shortened or rewritten. Nothing was taken; the next time it is read
    /// from its beginning.
    Replaced,
}

type FileId = (u64, u64);

#[cfg(unix)]
fn file_id(metadata: &Metadata) -> FileId {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

/// Elsewhere a file that takes another's place is told by its length and its bytes alone.
#[cfg(not(unix))]
fn file_id(_: &Metadata) -> FileId {
    (0, 0)
}

impl Tail {
    /// Of the journal at a path, whose records have this version of their schema. Nothing is read yet.
    pub fn new(path: &Path, schema: u32) -> Self {
        Self { path: path.to_owned(), schema, file: None, at: 0, seam: vec![] }
    }

    /// The journal.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Forgets what was read: the next time it is read from its beginning.
    pub fn rewind(&mut self) {
        (self.file, self.at) = (None, 0);
        self.seam.clear();
    }

    /// Hands out the records that were added. Lines that are none are skipped.
    /// Errors: the file can't be read; the next time goes on behind what was handed out.
    pub fn read<E: DeserializeOwned>(&mut self, take: impl FnMut(Record<E>)) -> Result<Grown, JournalError> {
        self.try_read(take).map_err(|source| JournalError { path: self.path.clone(), source })
    }

    fn try_read<E: DeserializeOwned>(&mut self, mut take: impl FnMut(Record<E>)) -> io::Result<Grown> {
        let mut file = open_inside(&self.path, 1)?;
        let metadata = file.metadata()?;
        let id = file_id(&metadata);
        let is_other = self.file.is_some_and(|known| known != id) || metadata.len() < self.at;
        if is_other || !self.has_seam(&file)? {
            self.rewind();
            return Ok(Grown::Replaced);
        }
        self.file = Some(id);
        if metadata.len() == self.at {
            return Ok(Grown::Same);
        }
        let before = self.at;
        file.seek(SeekFrom::Start(self.at))?;
        // What is added while this reads is for the next time: a writer that never stops would hold this here.
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
        Ok(if self.at == before { Grown::Same } else { Grown::Appended })
    }

    /// Whether what was read last stands where it stood.
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

        fn read(&mut self) -> (Grown, Vec<u64>) {
            let mut steps = vec![];
            let grown = self.tail.read(|record: Record| match record.event {
                Event::Interrupted { step } => steps.push(step),
                other => panic!("{other:?}"),
            });
            (grown.expect("readable"), steps)
        }
    }

    #[test]
    fn what_was_added_is_read_once_and_half_a_line_when_it_is_whole() {
        let mut case = Case::new();
        assert!(case.tail.read(|_: Record| ()).is_err(), "it is not there yet");
        let whole = line(1) + &line(2) + &line(3);
        for byte in whole.bytes() {
            case.append(std::str::from_utf8(&[byte]).expect("plain letters"));
            let expected = if byte == b'\n' { Grown::Appended } else { Grown::Same };
            let (grown, steps) = case.read();
            assert_eq!((grown, steps.len()), (expected, usize::from(byte == b'\n')));
        }
        case.append(&(line(4) + "\n{}\nnull\n\u{1b}[2J\n" + &line(5).replace("\"v\":1", "\"v\":2") + &line(6)));
        assert_eq!(case.read(), (Grown::Appended, vec![4, 6]));
        assert_eq!(case.read(), (Grown::Same, vec![]));
    }

    #[test]
    fn another_journal_in_its_place_is_read_from_its_beginning() {
        let mut case = Case::new();
        case.append(&(line(1) + &line(2)));
        assert_eq!(case.read(), (Grown::Appended, vec![1, 2]));
        // Shortened, and grown again beyond what was read.
        fs::write(&case.path, line(3)).expect("written");
        assert_eq!(case.read(), (Grown::Replaced, vec![]));
        assert_eq!(case.read(), (Grown::Appended, vec![3]));
        fs::write(&case.path, line(4) + &line(5)).expect("written");
        assert_eq!(case.read(), (Grown::Replaced, vec![]), "as long as before and longer, with other bytes");
        assert_eq!(case.read(), (Grown::Appended, vec![4, 5]));
        // Another file that begins as the first did.
        fs::write(case.path.with_extension("new"), line(4) + &line(5) + &line(6)).expect("written");
        fs::rename(case.path.with_extension("new"), &case.path).expect("renamed");
        assert_eq!(case.read(), (Grown::Replaced, vec![]));
        assert_eq!(case.read(), (Grown::Appended, vec![4, 5, 6]));
        fs::remove_file(&case.path).expect("it was there");
        assert!(case.tail.read(|_: Record| ()).is_err());
    }

    /// An endless line costs no memory, and is behind once its end is.
    #[test]
    fn a_line_without_end_is_skipped() {
        let mut case = Case::new();
        case.append(&("x".repeat(3 << 20) + "\n" + &line(7)));
        assert_eq!(case.read(), (Grown::Appended, vec![7]));
        case.append(&"[".repeat(1 << 20));
        assert_eq!(case.read(), (Grown::Appended, vec![]), "a piece as long as no line is");
        case.append(&("]\n".to_owned() + &line(8)));
        assert_eq!(case.read(), (Grown::Appended, vec![8]));
    }
}
