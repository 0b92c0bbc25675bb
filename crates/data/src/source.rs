//! The files of the data: where each is, and how it holds documents.
//! Not here: finding them (`sources.rs`), and reading them (`documents.rs`, `rows.rs`).

use crate::DataError;
use plimsoll_units::Bytes;
use std::io;
use std::path::PathBuf;

/// The default field of a .jsonl line that holds the text.
pub const DEFAULT_TEXT_FIELD: &str = "text";
/// The maximum length of a .jsonl line or a table row, which is held in memory whole: about ten books. Text files have
/// no limit; they are read in pieces.
pub const LINE_BYTES_MAX: usize = 16 << 20;

/// How a file holds documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The file is one document.
    Text,
    /// Each line is a JSON object: a document in one field of it, a pair, a chat.
    JsonLines,
    /// The file is an array of such objects, or an object that contains one.
    Json,
    /// Each row of the table is such an object.
    Parquet,
}

/// How a file is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not compressed.
    None,
    /// `.gz`, of one or more members.
    Gzip,
    /// `.zst`, of one or more frames.
    Zstd,
}

/// One file of the data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Its path.
    pub path: PathBuf,
    /// How it holds documents.
    pub format: Format,
    /// How it is compressed.
    pub compression: Compression,
    /// Reads only this many bytes, if the data as a whole is capped.
    pub limit: Option<Bytes>,
    /// The location of the rows in a .json that is one object; `None` for any other file.
    pub within: Option<Within>,
}

/// The location of the rows in a file that is one JSON object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Within {
    /// The object is the only row.
    Itself,
    /// The array under this key: of objects, or of texts, each of which becomes a row with a field of the same name.
    Key(String),
}

impl Source {
    /// All of a file.
    pub(crate) fn new(path: PathBuf, format: Format, compression: Compression) -> Self {
        Self { path, format, compression, limit: None, within: None }
    }

    /// The error for a failed read of the file.
    pub(crate) fn read_error(&self, error: io::Error) -> DataError {
        match self.compression {
            Compression::None => DataError::unreadable(&self.path, error),
            Compression::Gzip | Compression::Zstd => {
                DataError::BadCompression { path: self.path.clone(), source: error }
            }
        }
    }
}

/// The files of the data in reading order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    /// Never empty.
    pub files: Vec<Source>,
    /// The field of .jsonl lines that holds the text.
    pub text_field: String,
    /// Longer lines and rows are refused.
    pub line_bytes_max: usize,
    /// Number of files skipped because they belong to validation or test splits.
    pub other_splits: usize,
}

impl Sources {
    /// These files, with the default limits.
    pub(crate) fn new(files: Vec<Source>, text_field: &str) -> Self {
        Self { files, text_field: text_field.to_owned(), line_bytes_max: LINE_BYTES_MAX, other_splits: 0 }
    }

    /// The error if none of them has any text.
    pub(crate) fn empty_error(&self) -> DataError {
        DataError::Empty { files: self.files.len(), first: self.files[0].path.clone() }
    }
}
