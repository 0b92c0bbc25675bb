//! What a .json holds: one document, as a configuration is, or rows, as a data set is.

use crate::chats::format_of_row;
use crate::jsonl::text_of_line;
use crate::rows::{Rows, Wanted};
use crate::{Format, LINE_BYTES_MAX, Source};
use std::sync::Arc;

/// The format of a .json: an array of objects, or objects in lines, is rows if the first has the field of texts or is a
/// chat; where the file was named on purpose, in any case. Anything else is text, and so is what can't be read, of which
/// reading it will say why.
pub(crate) fn json_format(source: &Source, text_field: &str, is_named: bool) -> Format {
    for format in [Format::Json, Format::JsonLines] {
        let source = Source { format, ..source.clone() };
        if are_rows(&source, text_field, is_named).unwrap_or(false) {
            return format;
        }
    }
    Format::Text
}

/// None if not even the first can be read.
fn are_rows(source: &Source, text_field: &str, is_named: bool) -> Option<bool> {
    let mut rows = Rows::open(source, Wanted::Any(&[]), LINE_BYTES_MAX, Arc::default()).ok()?;
    if !rows.next(source).ok()? {
        return Some(false);
    }
    let is_object =
        |row: &str| serde_json::from_str::<serde::de::IgnoredAny>(row).is_ok() && row.trim().starts_with('{');
    let first = rows.text(source).ok()?;
    if !is_object(first) {
        return Some(false);
    }
    if text_of_line(first, text_field).is_ok_and(|text| text.is_some()) || format_of_row(first).is_some() {
        return Some(true);
    }
    // One line may be a whole document; two lines are none.
    let is_array = source.format == Format::Json;
    Some(is_named && (is_array || rows.next(source).ok()? && is_object(rows.text(source).ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Compression;

    fn format(text: &str, is_named: bool) -> Format {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        std::fs::write(&path, text).unwrap();
        let source = Source { path, format: Format::Text, compression: Compression::None, limit: None };
        json_format(&source, "text", is_named)
    }

    #[test]
    fn rows_are_told_from_documents() {
        for (text, in_folder, named) in [
            (r#"[{"text":"a"},{"text":"b"}]"#, Format::Json, Format::Json),
            (r#"[{"instruction":"a","output":"b"}]"#, Format::Json, Format::Json),
            ("{\"text\":\"a\"}\n{\"text\":\"b\"}\n", Format::JsonLines, Format::JsonLines),
            (r#"{"conversations":[{"from":"human","value":"a"}]}"#, Format::JsonLines, Format::JsonLines),
            ("[\n  {\"name\": \"a\"}\n]", Format::Text, Format::Json),
            ("{\"name\":\"a\"}\n{\"name\":\"b\"}\n", Format::Text, Format::JsonLines),
            ("{\"name\":\"a\"}\n", Format::Text, Format::Text),
            ("{\n  \"text\": \"a\"\n}\n", Format::Text, Format::Text),
            ("[1, 2]", Format::Text, Format::Text),
            ("", Format::Text, Format::Text),
        ] {
            assert_eq!((format(text, false), format(text, true)), (in_folder, named), "{text}");
        }
    }
}
