//! The position of a row, for messages. Not here: reading rows (`rows.rs`).

use std::fmt;

/// The position of a row in its file: its line number, or its row number if the file has no lines. Counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowNumber {
    /// In a text file.
    Line(u64),
    /// In any other file.
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
