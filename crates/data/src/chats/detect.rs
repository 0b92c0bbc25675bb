//! Detects the format of the data from its first row. Preference data, which can't be trained on, is refused by name.
//! Not here: the formats of chats (`format.rs`).

use super::format::{ChatError, ChatFormat, FIELDS, Fields};
use super::preference_data::PreferenceData;
use crate::rows::{Rows, Wanted};
use crate::{DataError, Format, RowNumber, Sources};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// The format of the data's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataFormat {
    /// Documents: text files, or one field of each row.
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

/// The format of the first row of all files; `Text` if no file has rows, or if that row is not a chat. In that case,
/// reading the row reports the error.
/// Errors: errors of reading a row; `Preferences`.
pub fn detect_format(sources: &Sources) -> Result<DataFormat, DataError> {
    for source in sources.files.iter().filter(|source| source.format != Format::Text) {
        let mut rows = Rows::open(source, Wanted::Any(FIELDS), sources.line_bytes_max, Arc::default())?;
        while rows.next(source)? {
            let row = rows.text(source)?;
            if !row.trim().is_empty() {
                let fields = fields_of(row);
                if let Some(kind) = fields.as_ref().and_then(Fields::preferences) {
                    return Err(DataError::Preferences { path: source.path.clone(), kind });
                }
                let format = fields.and_then(|fields| fields.format());
                return Ok(format.map_or(DataFormat::Text, DataFormat::Chats));
            }
        }
    }
    Ok(DataFormat::Text)
}

/// How the first row stores an example of preferences: `Completion` for texts, `Messages` for lists of messages.
/// Errors: errors of reading a row; `NotPreferred`, `TextNotPreferences`, `Empty`.
pub fn detect_preferences(sources: &Sources, data: PreferenceData) -> Result<ChatFormat, DataError> {
    for source in &sources.files {
        if source.format == Format::Text {
            return Err(DataError::TextNotPreferences { path: source.path.clone() });
        }
        let mut rows = Rows::open(source, Wanted::Any(FIELDS), sources.line_bytes_max, Arc::default())?;
        while rows.next(source)? {
            let in_file = |error| not_preferred(error, data, source.path.clone(), rows.number());
            if let Some(fields) = Fields::of_row(rows.text(source)?).map_err(in_file)? {
                let format = match data {
                    PreferenceData::Paired => fields.compared_format(),
                    PreferenceData::Judged => fields.judged_format(),
                };
                return format.map_err(in_file);
            }
        }
    }
    Err(sources.empty_error())
}

/// The error for a row that is not an example.
pub(super) fn not_preferred(error: ChatError, data: PreferenceData, path: PathBuf, row: RowNumber) -> DataError {
    match error {
        ChatError::NotAChat(message) => DataError::NotPreferred { path, row, data, message },
        error => error.in_file(path, row),
    }
}

/// Whether a row is a chat or a preference.
pub(crate) fn is_record(row: &str) -> bool {
    fields_of(row).is_some_and(|fields| fields.format().is_some() || fields.preferences().is_some())
}

fn fields_of(row: &str) -> Option<Fields> {
    Fields::of_row(row).ok().flatten()
}
