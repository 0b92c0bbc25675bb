//! What the data holds, by its first row.
//! Not here: the formats of chats (`format.rs`).

use super::format::{ChatFormat, FIELDS, Fields};
use crate::rows::{Rows, Wanted};
use crate::{DataError, Format, Sources};
use std::fmt;
use std::sync::Arc;

/// What the rows of the data are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataFormat {
    /// Documents: text files, and a field of rows.
    Text,
    /// Chats.
    Chats(ChatFormat),
}

impl fmt::Display for DataFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.pad("text"),
            Self::Chats(format) => format.fmt(f),
        }
    }
}

/// The format of the first row of all files; `Text` where no file has rows, and where that row is no chat, of which reading
/// it will say what is wrong.
/// Errors: what reading a row can meet.
pub fn detect_format(sources: &Sources) -> Result<DataFormat, DataError> {
    for source in sources.files.iter().filter(|source| source.format != Format::Text) {
        let mut rows = Rows::open(source, Wanted::Any(FIELDS), sources.line_bytes_max, Arc::default())?;
        while rows.next(source)? {
            let row = rows.text(source)?;
            if !row.trim().is_empty() {
                return Ok(format_of_row(row).map_or(DataFormat::Text, DataFormat::Chats));
            }
        }
    }
    Ok(DataFormat::Text)
}

/// The format of a row, if it is a chat.
pub(crate) fn format_of_row(row: &str) -> Option<ChatFormat> {
    Fields::of_row(row).ok().flatten().and_then(|fields| fields.format())
}
