//! Reads lines of a file one by one, numbered, none longer than a limit: a compressed file of kilobytes may hold a line
//! of gigabytes.
//! Not here: the content of a line (`jsonl.rs`), and rows of tables, which may span lines (`pairs/rows.rs`).

use crate::{DataError, RowNumber, Source};
use plimsoll_units::Bytes;
use std::io::{BufRead, BufReader, Read};

pub(crate) struct Lines {
    reader: BufReader<Box<dyn Read>>,
    bytes_max: usize,
    line: Vec<u8>,
    number: u64,
    offset: u64,
}

impl Lines {
    /// The lines of a stream. Refuses lines longer than `bytes_max`.
    pub(crate) fn new(reader: Box<dyn Read>, bytes_max: usize) -> Self {
        Self { reader: BufReader::new(reader), bytes_max, line: Vec::new(), number: 0, offset: 0 }
    }

    /// The number of the last line read, counted from 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The offset of that line.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The last line read, with its line feed.
    pub(crate) fn line(&self) -> &[u8] {
        &self.line
    }

    /// Reads the next line; false at the end.
    /// Errors: `LineTooLong`, detected without reading past the limit; read errors of `source`.
    pub(crate) fn next(&mut self, source: &Source) -> Result<bool, DataError> {
        self.offset += self.line.len() as u64;
        self.line.clear();
        let mut limited = (&mut self.reader).take(self.bytes_max as u64 + 1);
        limited.read_until(b'\n', &mut self.line).map_err(|error| source.read_error(error))?;
        if self.line.is_empty() {
            return Ok(false);
        }
        self.number += 1;
        if self.line.len() > self.bytes_max {
            let limit = Bytes(self.bytes_max as u64);
            return Err(DataError::LineTooLong { path: source.path.clone(), row: RowNumber::Line(self.number), limit });
        }
        Ok(true)
    }
}
