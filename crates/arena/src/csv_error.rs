//! The errors of `csv.rs`, each with its place in the file.

use super::problem::MAX_TOTAL_BYTES;
use std::fmt;
use thiserror::Error;

/// A field of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its line; the header is line 1.
    pub line: usize,
    /// The number of its field in the line, from 1.
    pub column: usize,
    /// The name of its column; empty if unknown.
    pub name: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)?;
        if !self.name.is_empty() {
            write!(f, " ({})", self.name)?;
        }
        Ok(())
    }
}

/// Why a lifetime CSV cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CsvError {
    /// The text is empty.
    #[error("line 1, column 1: found an empty file, expected the header `id,lower,upper,size`")]
    Empty,
    /// The header lacks a column.
    #[error("line 1: found the header `{found}`, expected a column `{missing}` in it")]
    MissingColumn {
        /// The missing column.
        missing: String,
        /// The whole header.
        found: String,
    },
    /// The header names a column twice.
    #[error("{place}: found a second column of this name, expected only column {first_column} to have it")]
    DuplicateColumn {
        /// The second column.
        place: Place,
        /// The number of the first column, from 1.
        first_column: usize,
    },
    /// A line has more or fewer fields than the header.
    #[error("{place}: found {found} field(s), expected {expected} as in the header")]
    FieldCount {
        /// The last field of a short line, or the first surplus one.
        place: Place,
        /// Fields in the line.
        found: usize,
        /// Fields in the header.
        expected: usize,
    },
    /// A field contains a quote.
    #[error("{place}: found a quote in `{found}`, expected plain fields (this format has no quoting)")]
    Quoted {
        /// The field.
        place: Place,
        /// Its text.
        found: String,
    },
    /// A field that must be a number is not one.
    #[error("{place}: found `{found}`, expected a whole number")]
    NotANumber {
        /// The field.
        place: Place,
        /// Its text.
        found: String,
    },
    /// A number is negative.
    #[error("{place}: found `{found}`, expected a number that is not negative")]
    Negative {
        /// The field.
        place: Place,
        /// Its text.
        found: String,
    },
    /// A number does not fit in 64 bits.
    #[error("{place}: found `{found}`, expected a number of at most 64 bits ({})", u64::MAX)]
    TooLarge {
        /// The field.
        place: Place,
        /// Its text.
        found: String,
    },
    /// A lifespan ends before it starts.
    #[error("{place}: found the end {upper}, expected no less than the start {lower}")]
    Reversed {
        /// The field of the end.
        place: Place,
        /// The start.
        lower: u64,
        /// The end.
        upper: u64,
    },
    /// Two lines have the same id.
    #[error("{place}: found the id `{id}` again, expected it only on line {first_line}")]
    DuplicateId {
        /// The field of the second id.
        place: Place,
        /// The id.
        id: String,
        /// The line that has the id first.
        first_line: usize,
    },
    /// The sizes up to this line add up to more than `MAX_TOTAL_BYTES`.
    #[error("{place}: found {size} bytes after {before}, expected at most {MAX_TOTAL_BYTES} bytes in all")]
    TotalTooLarge {
        /// The field of the size that exceeds the limit.
        place: Place,
        /// That size.
        size: u64,
        /// The sum of the sizes in the lines above.
        before: u64,
    },
    /// `read_csv` would not read an id back unchanged.
    #[error(
        "line {line}, column 1 (id): found the id `{id}`, expected one without commas, quotes, line breaks or surrounding blanks"
    )]
    UnwritableId {
        /// The line that the id would be on.
        line: usize,
        /// The id.
        id: String,
    },
}
