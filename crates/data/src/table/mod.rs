//! Reads the rows of a Parquet file as JSON objects with selected columns, one row group at a time.
//! Read next: `pages.rs` for the bounds on memory, `json.rs` for the format of values. The `parquet` crate decodes
//! encodings and nesting.
//!
//! Parquet metadata is untrusted: the lengths of the footer and of pages, and the numbers of values in a dictionary and
//! a row, are checked before allocation.

mod header;
mod json;
mod levels;
mod pages;

use crate::quiet::caught;
use crate::{DataError, RowNumber, Source};
use pages::RowGroup;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::record::reader::{ReaderIter, TreeBuilder};
use parquet::schema::types::{SchemaDescriptor, Type, TypePtr};
use plimsoll_units::Bytes;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The magic at both ends of a file.
const MAGIC: &[u8; 4] = b"PAR1";
const FOOTER_BYTES_MAX: u64 = 4 << 20;
/// Maximum leaf columns that are read; each has pages in memory.
const LEAVES_MAX: usize = 32;
/// Number of rows that the library reads ahead.
const ROWS_AHEAD: usize = 16;

/// A file that is read row by row.
pub(crate) struct Table {
    file: Arc<File>,
    metadata: ParquetMetaData,
    /// The selected columns.
    schema: Arc<SchemaDescriptor>,
    next_group: usize,
    rows: Option<ReaderIter>,
    /// Number of the last row read, counted from 1.
    number: u64,
    json: Vec<u8>,
    row_bytes_max: usize,
    raw_bytes: Arc<AtomicU64>,
}

impl Table {
    /// Opens a file for those of these columns that exist.
    /// Errors: `BadTable`, `DuplicateColumn`, system errors.
    pub(crate) fn open(
        source: &Source,
        columns: &[&str],
        row_bytes_max: usize,
        raw_bytes: Arc<AtomicU64>,
    ) -> Result<Self, DataError> {
        let bad = |message: String| DataError::BadTable { path: source.path.clone(), message };
        let unreadable = |error| DataError::unreadable(&source.path, error);
        let file = plimsoll_files::open_regular(&source.path).map_err(unreadable)?;
        let footer = footer(&file).map_err(unreadable)?.map_err(bad)?;
        let metadata = caught(|| ParquetMetaDataReader::decode_metadata(&footer))
            .map_err(bad)?
            .map_err(|error| bad(error.to_string()))?;
        let schema = projected(metadata.file_metadata().schema_descr(), columns).map_err(bad)?;
        let fields = schema.root_schema().get_fields();
        let is_twice = |name: &&&str| fields.iter().filter(|field| field.name() == **name).count() > 1;
        if let Some(name) = columns.iter().find(is_twice) {
            return Err(DataError::DuplicateColumn { path: source.path.clone(), name: (*name).to_owned() });
        }
        let file = Arc::new(file);
        let json = Vec::new();
        Ok(Self { file, metadata, schema, next_group: 0, rows: None, number: 0, json, row_bytes_max, raw_bytes })
    }

    /// Whether a column is selected and exists.
    pub(crate) fn has(&self, column: &str) -> bool {
        self.schema.root_schema().get_fields().iter().any(|field| field.name() == column)
    }

    /// The names of all its columns.
    pub(crate) fn columns(&self) -> Vec<String> {
        let fields = self.metadata.file_metadata().schema_descr().root_schema().get_fields();
        fields.iter().map(|field| field.name().to_owned()).collect()
    }

    /// Reads the next row; false at the end. Errors: `BadTable`, `LineTooLong`.
    pub(crate) fn next(&mut self, source: &Source) -> Result<bool, DataError> {
        let row = RowNumber::Row(self.number + 1);
        let bad = |message| DataError::BadTable { path: source.path.clone(), message: format!("at {row}: {message}") };
        // A reader whose library panicked is not used again: an error ends the read.
        let read = caught(|| self.read()).map_err(bad)?.map_err(bad)?;
        if read && self.json.len() > self.row_bytes_max {
            let limit = Bytes(self.row_bytes_max as u64);
            return Err(DataError::LineTooLong { path: source.path.clone(), row, limit });
        }
        self.number += u64::from(read);
        Ok(read)
    }

    fn read(&mut self) -> Result<bool, String> {
        loop {
            if let Some(row) = self.rows.as_mut().and_then(Iterator::next) {
                self.json.clear();
                json::append_row(&row.map_err(|error| error.to_string())?, self.row_bytes_max, &mut self.json);
                return Ok(true);
            }
            if self.next_group == self.metadata.num_row_groups() {
                return Ok(false);
            }
            let group = self.metadata.row_group(self.next_group);
            self.next_group += 1;
            self.raw_bytes.fetch_add(u64::try_from(group.compressed_size()).unwrap_or(0), Ordering::Relaxed);
            let reader = RowGroup { file: Arc::clone(&self.file), metadata: group.clone() };
            let rows = TreeBuilder::new().with_batch_size(ROWS_AHEAD).as_iter(Arc::clone(&self.schema), &reader);
            self.rows = Some(rows.map_err(|error| error.to_string())?);
        }
    }

    /// The last row read, as JSON.
    pub(crate) fn json(&self) -> &str {
        str::from_utf8(&self.json).expect("JSON is text")
    }

    /// Its number, counted from 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

/// The footer of the file. The outer error is the system's; the inner one says why the file is invalid.
fn footer(file: &File) -> std::io::Result<Result<Vec<u8>, String>> {
    let no_table = "it does not end like a Parquet file".to_owned();
    let length = file.metadata()?.len();
    let mut tail = [0; 8];
    if length < 12 {
        return Ok(Err(no_table));
    }
    plimsoll_files::read_exact_at(file, &mut tail, length - 8)?;
    let footer_bytes = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
    if tail[4..] != *MAGIC {
        let is_encrypted = tail[4..] == *b"PARE";
        return Ok(Err(if is_encrypted { "it is encrypted".to_owned() } else { no_table }));
    } else if footer_bytes > FOOTER_BYTES_MAX.min(length - 12) {
        return Ok(Err(format!("its footer claims {footer_bytes} bytes")));
    }
    let mut footer = vec![0; footer_bytes as usize];
    plimsoll_files::read_exact_at(file, &mut footer, length - 8 - footer_bytes)?;
    Ok(Ok(footer))
}

/// The schema of some columns. Errors: they have too many leaf columns.
fn projected(schema: &SchemaDescriptor, columns: &[&str]) -> Result<Arc<SchemaDescriptor>, String> {
    let root = schema.root_schema();
    let is_wanted = |field: &&TypePtr| columns.contains(&field.name());
    let fields: Vec<TypePtr> = root.get_fields().iter().filter(is_wanted).map(Arc::clone).collect();
    let root = Type::group_type_builder(root.name()).with_fields(fields).build().map_err(|error| error.to_string())?;
    let projected = SchemaDescriptor::new(Arc::new(root));
    match projected.num_columns() {
        0..=LEAVES_MAX => Ok(Arc::new(projected)),
        leaves => Err(format!("the selected columns have {leaves} leaf columns; the limit is {LEAVES_MAX}")),
    }
}
