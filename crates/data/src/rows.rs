//! Rows of a file, each a JSON object in a line of text, one by one and numbered.
//! Not here: what a row means (`jsonl.rs` for texts, `chats/` for chats).

use crate::lines::Lines;
use crate::{DataError, Source, decompress};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Where a row is in its file, as people find it: by the number of its line, or of the row where a file has no lines.
/// Counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowNumber {
    /// Of a text file.
    Line(u64),
    /// Of any other.
    Row(u64),
}

impl fmt::Display for RowNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Row(row) => write!(f, "row {row}"),
        }
    }
}

/// The rows of a file.
pub(crate) struct Rows {
    lines: Lines,
}

impl Rows {
    /// Rows longer than `row_bytes_max` are refused. `raw_bytes` grows by what is read from disk.
    pub(crate) fn open(source: &Source, row_bytes_max: usize, raw_bytes: Arc<AtomicU64>) -> Result<Self, DataError> {
        let reader = decompress::open(source, raw_bytes).map_err(|error| DataError::unreadable(&source.path, error))?;
        Ok(Self { lines: Lines::new(reader, row_bytes_max) })
    }

    /// Reads the next row; false at the end. Errors: `LineTooLong`, what reading `source` can meet.
    pub(crate) fn next(&mut self, source: &Source) -> Result<bool, DataError> {
        self.lines.next(source)
    }

    /// The row that was read last. A blank line is a row without an object.
    /// Errors: `NotUtf8`.
    pub(crate) fn text(&self, source: &Source) -> Result<&str, DataError> {
        let text = str::from_utf8(self.lines.line()).map_err(|error| DataError::NotUtf8 {
            path: source.path.clone(),
            offset: self.lines.offset() + error.valid_up_to() as u64,
        })?;
        Ok(if self.lines.number() == 1 { text.trim_start_matches('\u{feff}') } else { text })
    }

    /// The number of that row.
    pub(crate) fn number(&self) -> RowNumber {
        RowNumber::Line(self.lines.number())
    }

    /// Where that row starts in the decompressed file.
    pub(crate) fn offset(&self) -> u64 {
        self.lines.offset()
    }
}
