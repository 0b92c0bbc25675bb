//! One line of a .jsonl file: the texts that its fields hold.

use crate::error::{NAMES_MAX, cut_name};
use crate::{DataError, RowNumber};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::path::PathBuf;

/// Why a line has no text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LineError {
    /// Not a JSON object.
    NotAnObject(String),
    /// The field is absent; the listed fields hold text.
    NoField(Vec<String>),
    /// The field holds another type.
    NotText(&'static str),
}

impl LineError {
    /// Converts to the error for `field` in a row of a file.
    pub(crate) fn in_file(self, path: PathBuf, row: RowNumber, field: &str) -> DataError {
        let field = field.to_owned();
        match self {
            Self::NotAnObject(message) => DataError::BadJsonLine { path, row, message },
            Self::NoField(present) => DataError::NoTextField { path, row, field, present },
            Self::NotText(found) => DataError::FieldIsNotText { path, row, field, found },
        }
    }
}

/// The text in `field` of a line; `None` for a blank line.
pub(crate) fn text_of_line(line: &str, field: &str) -> Result<Option<String>, LineError> {
    let texts = texts_of_line(line, &[field]).map_err(|(_, error)| error)?;
    Ok(texts.and_then(|mut texts| texts.pop()))
}

/// The texts in `fields` of a line; `None` for a blank line. An error names the field. The rest of the line is checked
/// but not kept, so it uses no memory. The last of several fields with the same name wins.
pub(crate) fn texts_of_line(line: &str, fields: &[&str]) -> Result<Option<Vec<String>>, (usize, LineError)> {
    if line.trim().is_empty() {
        return Ok(None);
    }
    let found = parsed(line, Fields { fields }).map_err(|error| (0, LineError::NotAnObject(error.to_string())))?;
    let texts = found.into_iter().enumerate().map(|(index, found)| match found {
        Some(Found::Text(text)) => Ok(text),
        Some(Found::Other(kind)) => Err((index, LineError::NotText(kind))),
        None => Err((index, LineError::NoField(text_fields(line)))),
    });
    texts.collect::<Result<_, _>>().map(Some)
}

/// The names of the first fields that hold text; long names are cut.
pub(crate) fn text_fields(line: &str) -> Vec<String> {
    parsed(line, TextFields).unwrap_or_default()
}

fn parsed<'l, V: Visitor<'l>>(line: &'l str, visitor: V) -> serde_json::Result<V::Value> {
    let mut parser = serde_json::Deserializer::from_str(line);
    let found = parser.deserialize_map(visitor)?;
    parser.end()?;
    Ok(found)
}

/// Extracts some fields of an object.
struct Fields<'f> {
    fields: &'f [&'f str],
}

impl<'l> Visitor<'l> for Fields<'_> {
    type Value = Vec<Option<Found>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'l>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut found = vec![None; self.fields.len()];
        while let Some(name) = object.next_key::<String>()? {
            if !self.fields.contains(&name.as_str()) {
                object.next_value::<IgnoredAny>()?;
                continue;
            }
            let value: Found = object.next_value()?;
            for (_, slot) in self.fields.iter().zip(&mut found).filter(|(field, _)| **field == name) {
                *slot = Some(value.clone());
            }
        }
        Ok(found)
    }
}

/// Collects the names of fields that hold text.
struct TextFields;

impl<'l> Visitor<'l> for TextFields {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'l>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut names = Vec::new();
        while let Some(name) = object.next_key::<String>()? {
            let holds_text = matches!(object.next_value()?, Found::Text(_));
            if holds_text && names.len() < NAMES_MAX {
                names.push(cut_name(&name));
            }
        }
        Ok(names)
    }
}

/// The value of a field.
#[derive(Debug, Clone)]
enum Found {
    Text(String),
    Other(&'static str),
}

impl<'l> Deserialize<'l> for Found {
    fn deserialize<D: Deserializer<'l>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FoundVisitor)
    }
}

struct FoundVisitor;

impl<'l> Visitor<'l> for FoundVisitor {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Found, E> {
        Ok(Found::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Found, E> {
        Ok(Found::Text(text))
    }

    fn visit_unit<E>(self) -> Result<Found, E> {
        Ok(Found::Other("null"))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Found, E> {
        Ok(Found::Other("a boolean"))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Found, E> {
        Ok(Found::Other("a number"))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Found, E> {
        Ok(Found::Other("a number"))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Found, E> {
        Ok(Found::Other("a number"))
    }

    fn visit_seq<A: SeqAccess<'l>>(self, mut list: A) -> Result<Found, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Found::Other("a list"))
    }

    fn visit_map<A: MapAccess<'l>>(self, mut object: A) -> Result<Found, A::Error> {
        while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Found::Other("an object"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_yield_their_text_or_an_error() {
        let not_an_object = |line| matches!(text_of_line(line, "text"), Err(LineError::NotAnObject(_)));
        assert_eq!(text_of_line(r#"{"text": "a\nb\u00e9", "id": 7}"#, "text"), Ok(Some("a\nbé".to_owned())));
        assert_eq!(text_of_line(r#" {"content": ""} "#, "content"), Ok(Some(String::new())));
        assert_eq!(text_of_line(" \r\n", "text"), Ok(None));
        assert_eq!(text_of_line(r#"{"text": null}"#, "text"), Err(LineError::NotText("null")));
        assert_eq!(text_of_line(r#"{"text": ["a"]}"#, "text"), Err(LineError::NotText("a list")));
        let present = vec!["content".to_owned()];
        assert_eq!(text_of_line(r#"{"content": "x", "id": 7}"#, "text"), Err(LineError::NoField(present)));
        assert!(not_an_object(r#"["text"]"#) && not_an_object(r#"{"text": "x"#) && not_an_object("{} {}"));
    }

    #[test]
    fn the_last_of_two_fields_wins_and_deep_nesting_is_safe() {
        assert_eq!(text_of_line(r#"{"text": 1, "text": "b"}"#, "text"), Ok(Some("b".to_owned())));
        let deep = "[".repeat(1 << 20) + &"]".repeat(1 << 20);
        let line = format!(r#"{{"deep": {deep}, "text": "a"}}"#);
        assert_eq!(text_of_line(&line, "text"), Ok(Some("a".to_owned())));
        assert_eq!(text_of_line(&line, "deep"), Err(LineError::NotText("a list")));
        let names = text_of_line(&format!(r#"{{"{}": "", "b": ""}}"#, "a".repeat(1000)), "text").unwrap_err();
        assert_eq!(names, LineError::NoField(vec!["a".repeat(60) + "…", "b".to_owned()]));
    }

    proptest! {
        #[test]
        fn any_line_is_read_or_refused(line in ".{0,60}") {
            let _ = text_of_line(&line, "text");
        }

        #[test]
        fn any_text_survives(text in "\\PC{0,40}") {
            let line = serde_json::json!({ "text": text }).to_string();
            prop_assert_eq!(text_of_line(&line, "text"), Ok(Some(text)));
        }
    }
}
