//! Reads the rows of a file one by one and numbered, each a JSON object: from .jsonl, from a JSON array, from Parquet.
//! Not here: the content of a row (`jsonl.rs` for texts, `chats/` for chats).

use crate::array::Array;
use crate::error::{NAMES_MAX, cut_name};
use crate::lines::Lines;
use crate::table::Table;
use crate::{DataError, Format, RowNumber, Source, decompress};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The fields that the caller needs; readers may skip the others.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wanted<'f> {
    /// All of these: a table that lacks one is refused.
    All(&'f [&'f str]),
    /// Those of these that exist.
    Any(&'f [&'f str]),
}

/// The rows of a file.
pub(crate) enum Rows {
    Lines(Lines),
    Array(Array),
    Table(Box<Table>),
}

impl Rows {
    /// Refuses rows longer than `row_bytes_max`. Adds the bytes read from disk to `raw_bytes`.
    /// Errors: the errors of opening the file; `NoSuchColumn`.
    pub(crate) fn open(
        source: &Source,
        wanted: Wanted<'_>,
        row_bytes_max: usize,
        raw_bytes: Arc<AtomicU64>,
    ) -> Result<Self, DataError> {
        if source.format == Format::Parquet {
            let (Wanted::All(columns) | Wanted::Any(columns)) = wanted;
            let table = Table::open(source, columns, row_bytes_max, raw_bytes)?;
            return match columns.iter().find(|column| !table.has(column)) {
                Some(missing) if matches!(wanted, Wanted::All(_)) => Err(DataError::NoSuchColumn {
                    path: source.path.clone(),
                    name: (*missing).to_owned(),
                    present: table.columns().iter().take(NAMES_MAX).map(|name| cut_name(name)).collect(),
                }),
                _ => Ok(Self::Table(Box::new(table))),
            };
        }
        let reader = decompress::open(source, raw_bytes).map_err(|error| DataError::unreadable(&source.path, error))?;
        Ok(match source.format {
            Format::Json => Self::Array(Array::new(reader, row_bytes_max, source.within.clone())),
            Format::JsonLines | Format::Text | Format::Parquet => Self::Lines(Lines::new(reader, row_bytes_max)),
        })
    }

    /// Reads the next row; false at the end. Errors: `LineTooLong`, read errors of `source`.
    pub(crate) fn next(&mut self, source: &Source) -> Result<bool, DataError> {
        match self {
            Self::Lines(lines) => lines.next(source),
            Self::Array(array) => array.next(source),
            Self::Table(table) => table.next(source),
        }
    }

    /// The last row read. A blank line is a row without an object.
    /// Errors: `NotUtf8`.
    pub(crate) fn text(&self, source: &Source) -> Result<&str, DataError> {
        let bytes = match self {
            Self::Lines(lines) => lines.line(),
            Self::Array(array) => array.object(),
            Self::Table(table) => return Ok(table.json()),
        };
        let text = str::from_utf8(bytes).map_err(|error| DataError::NotUtf8 {
            path: source.path.clone(),
            offset: self.offset() + error.valid_up_to() as u64,
        })?;
        Ok(if self.offset() == 0 { text.trim_start_matches('\u{feff}') } else { text })
    }

    /// The number of that row.
    pub(crate) fn number(&self) -> RowNumber {
        match self {
            Self::Lines(lines) => RowNumber::Line(lines.number()),
            Self::Array(array) => RowNumber::Row(array.number()),
            Self::Table(table) => RowNumber::Row(table.number()),
        }
    }

    /// The offset of that row in the decompressed file; 0 for a table, whose rows have no offset.
    pub(crate) fn offset(&self) -> u64 {
        match self {
            Self::Lines(lines) => lines.offset(),
            Self::Array(array) => array.offset(),
            Self::Table(_) => 0,
        }
    }
}
