//! Tells whether a .json holds one document, such as a configuration, or rows of a data set, and where the rows are.

use crate::chats::is_record;
use crate::error::{NAMES_MAX, cut_name};
use crate::jsonl::text_of_line;
use crate::rows::{Rows, Wanted};
use crate::{DataError, Format, LINE_BYTES_MAX, Source, Within, decompress};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::io::{BufRead, BufReader};
use std::sync::Arc;

/// The preferred key if several keys hold rows: the training split.
const TRAINING_SPLIT: &str = "train";

/// Returns how to read a .json. An array of objects, JSON lines, one object that is a row, or an object that holds an
/// array of rows, is read as rows if the first row has the text field or is a chat, or if the user named the file.
/// Unparsable files are read as text, whose reader reports the error; so are other objects found in folders.
/// Errors: `NoRows` for an object or array that the user named and whose rows can't be located.
pub(crate) fn json_file(source: Source, text_field: &str, is_named: bool) -> Result<Source, DataError> {
    let rows = |format, within| Source { format, within, ..source.clone() };
    for found in [rows(Format::Json, None), rows(Format::JsonLines, None), rows(Format::Json, Some(Within::Itself))] {
        if are_rows(&found, text_field, is_named).unwrap_or(false) {
            return Ok(found);
        }
    }
    let text = rows(Format::Text, None);
    let Some(values) = values_of_file(&source) else { return Ok(text) };
    match key_of_rows(&values, text_field) {
        Some(key) => {
            let found = rows(Format::Json, Some(Within::Key(key)));
            Ok(if is_named || are_rows(&found, text_field, false).unwrap_or(false) { found } else { text })
        }
        None if is_named => {
            let keys = values.iter().take(NAMES_MAX).map(|(key, _)| cut_name(key)).collect();
            Err(DataError::NoRows { path: source.path, keys })
        }
        None => Ok(text),
    }
}

/// `None` if the first row can't be read.
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
    if text_of_line(first, text_field).is_ok_and(|text| text.is_some()) || is_record(first) {
        return Some(true);
    }
    // One line may be a whole document; two lines are rows.
    let is_array = source.format == Format::Json && source.within.is_none();
    Some(is_named && (is_array || rows.next(source).ok()? && is_object(rows.text(source).ok()?)))
}

/// The key whose array holds the rows: the only array of objects; among several, the training split; without any, the
/// text field if it is a column of texts.
fn key_of_rows(values: &[(String, ValueKind)], text_field: &str) -> Option<String> {
    let of_kind = |kind| values.iter().filter(move |(_, found)| *found == kind).map(|(key, _)| key);
    let mut objects = of_kind(ValueKind::Objects);
    match (objects.next(), objects.next()) {
        (Some(only), None) => Some(only.clone()),
        (Some(_), Some(_)) => of_kind(ValueKind::Objects).find(|key| *key == TRAINING_SPLIT).cloned(),
        (None, _) => of_kind(ValueKind::Texts).find(|key| *key == text_field).cloned(),
    }
}

/// The type of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueKind {
    /// An array whose first element is an object.
    Objects,
    /// An array whose first element is a text.
    Texts,
    Other,
}

/// The keys of a file that is one object; empty for an array; `None` for any other file. Parses the file as a stream.
fn values_of_file(source: &Source) -> Option<Vec<(String, ValueKind)>> {
    let mut reader = BufReader::new(decompress::open(source, Arc::default()).ok()?);
    if reader.fill_buf().ok()?.starts_with("\u{feff}".as_bytes()) {
        reader.consume("\u{feff}".len());
    }
    let mut parser = serde_json::Deserializer::from_reader(reader);
    let values = parser.deserialize_any(Values).ok()?;
    parser.end().ok()?;
    Some(values)
}

/// At most this many keys are examined.
const KEYS_MAX: usize = 1000;

struct Values;

impl<'j> Visitor<'j> for Values {
    type Value = Vec<(String, ValueKind)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array")
    }

    fn visit_seq<A: SeqAccess<'j>>(self, mut array: A) -> Result<Self::Value, A::Error> {
        while array.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Vec::new())
    }

    fn visit_map<A: MapAccess<'j>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut values = Vec::new();
        while let Some(key) = object.next_key::<String>()? {
            let kind = object.next_value()?;
            if values.len() < KEYS_MAX {
                values.push((key, kind));
            }
        }
        Ok(values)
    }
}

impl<'j> Deserialize<'j> for ValueKind {
    fn deserialize<D: Deserializer<'j>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OfValue { in_array: false })
    }
}

/// Determines the type of a value, or of an array's first element.
struct OfValue {
    in_array: bool,
}

impl<'j> serde::de::DeserializeSeed<'j> for OfValue {
    type Value = ValueKind;

    fn deserialize<D: Deserializer<'j>>(self, deserializer: D) -> Result<ValueKind, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'j> Visitor<'j> for OfValue {
    type Value = ValueKind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E>(self, _: &str) -> Result<ValueKind, E> {
        Ok(if self.in_array { ValueKind::Texts } else { ValueKind::Other })
    }

    fn visit_unit<E>(self) -> Result<ValueKind, E> {
        Ok(ValueKind::Other)
    }

    fn visit_bool<E>(self, _: bool) -> Result<ValueKind, E> {
        Ok(ValueKind::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<ValueKind, E> {
        Ok(ValueKind::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<ValueKind, E> {
        Ok(ValueKind::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<ValueKind, E> {
        Ok(ValueKind::Other)
    }

    fn visit_seq<A: SeqAccess<'j>>(self, mut array: A) -> Result<ValueKind, A::Error> {
        let first = match self.in_array {
            true => None,
            false => array.next_element_seed(OfValue { in_array: true })?,
        };
        while array.next_element::<IgnoredAny>()?.is_some() {}
        Ok(first.unwrap_or(ValueKind::Other))
    }

    fn visit_map<A: MapAccess<'j>>(self, mut object: A) -> Result<ValueKind, A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(if self.in_array { ValueKind::Objects } else { ValueKind::Other })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Compression;

    fn read(text: &str, is_named: bool) -> Result<Source, DataError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        std::fs::write(&path, text).unwrap();
        json_file(Source::new(path, Format::Text, Compression::None), "text", is_named)
    }

    fn format(text: &str, is_named: bool) -> Option<Format> {
        read(text, is_named).ok().map(|source| source.format)
    }

    #[test]
    fn rows_are_distinguished_from_documents() {
        for (text, in_folder, named) in [
            (r#"[{"text":"a"},{"text":"b"}]"#, Format::Json, Some(Format::Json)),
            (r#"[{"instruction":"a","output":"b"}]"#, Format::Json, Some(Format::Json)),
            ("{\"text\":\"a\"}\n{\"text\":\"b\"}\n", Format::JsonLines, Some(Format::JsonLines)),
            (r#"{"conversations":[{"from":"human","value":"a"}]}"#, Format::JsonLines, Some(Format::JsonLines)),
            ("[\n  {\"name\": \"a\"}\n]", Format::Text, Some(Format::Json)),
            ("{\"name\":\"a\"}\n{\"name\":\"b\"}\n", Format::Text, Some(Format::JsonLines)),
            ("{\"name\":\"a\"}\n", Format::Text, None),
            ("{\n  \"text\": \"a\"\n}\n", Format::Json, Some(Format::Json)),
            ("[1, 2]", Format::Text, None),
            ("{\"name\": 1} and more", Format::Text, Some(Format::Text)),
            ("", Format::Text, Some(Format::Text)),
        ] {
            assert_eq!((format(text, false), format(text, true)), (Some(in_folder), named), "{text}");
        }
    }

    #[test]
    fn rows_of_an_object_are_read_if_unambiguous() {
        let key = |key: &str| Some(Within::Key(key.to_owned()));
        for (text, in_folder, named) in [
            (r#"{"version":"1.0","data":[{"text":"a"}]}"#, key("data"), key("data")),
            ("\u{feff}{\"info\":{\"n\":[{}]},\n\"rows\":[{\"text\":\"a\"}]}", key("rows"), key("rows")),
            (r#"{"data":[{"title":"a","paragraphs":[]}],"version":"1.1"}"#, None, key("data")),
            (r#"{"test":[{"text":"a"}],"train":[{"text":"b"}]}"#, key("train"), key("train")),
            (r#"{"text":["a","b"],"label":[1,2]}"#, key("text"), key("text")),
            (
                "{\n\"messages\":\n[{\"role\":\"user\",\"content\":\"a\"}]\n}",
                Some(Within::Itself),
                Some(Within::Itself),
            ),
        ] {
            let within = |is_named| read(text, is_named).expect("rows").within;
            assert_eq!((within(false), within(true)), (in_folder, named), "{text}");
        }
        for text in [
            r#"{"images":[{"id":1}],"annotations":[{"id":2}]}"#,
            r#"{"question":["a"],"answer":["b"]}"#,
            r#"{"name":"a","sizes":[1,2]}"#,
            "{}",
        ] {
            assert!(matches!(read(text, true), Err(DataError::NoRows { .. })), "{text}");
            assert_eq!(read(text, false).expect("a document of a folder").format, Format::Text, "{text}");
        }
    }
}
