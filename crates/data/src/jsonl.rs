//! One line of a .jsonl file: the texts that its fields hold.

use crate::DataError;
use serde_json::{Map, Value};
use std::path::PathBuf;

/// Why a line gives no text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LineError {
    /// Not a JSON object.
    NotAnObject(String),
    /// The field is absent; these fields hold text.
    NoField(Vec<String>),
    /// The field holds something else.
    NotText(&'static str),
}

impl LineError {
    /// The error of a file's line, counted from 1, about `field`.
    pub(crate) fn in_file(self, path: PathBuf, line: u64, field: &str) -> DataError {
        let field = field.to_owned();
        match self {
            Self::NotAnObject(message) => DataError::BadJsonLine { path, line, message },
            Self::NoField(present) => DataError::NoTextField { path, line, field, present },
            Self::NotText(found) => DataError::FieldIsNotText { path, line, field, found },
        }
    }
}

/// The text in `field` of a line; `None` for a blank line.
pub(crate) fn text_of_line(line: &str, field: &str) -> Result<Option<String>, LineError> {
    let texts = texts_of_line(line, [field]).map_err(|(_, error)| error)?;
    Ok(texts.map(|[text]| text))
}

/// The texts in `fields` of a line; `None` for a blank line. An error says which of the fields it is about.
pub(crate) fn texts_of_line<const N: usize>(
    line: &str,
    fields: [&str; N],
) -> Result<Option<[String; N]>, (usize, LineError)> {
    if line.trim().is_empty() {
        return Ok(None);
    }
    let object: Map<String, Value> =
        serde_json::from_str(line).map_err(|error| (0, LineError::NotAnObject(error.to_string())))?;
    let mut texts = [const { String::new() }; N];
    for (index, field) in fields.into_iter().enumerate() {
        texts[index] = match object.get(field) {
            Some(Value::String(text)) => text.clone(),
            Some(other) => return Err((index, LineError::NotText(kind_of(other)))),
            None => return Err((index, LineError::NoField(text_fields(object)))),
        };
    }
    Ok(Some(texts))
}

fn text_fields(object: Map<String, Value>) -> Vec<String> {
    object.into_iter().filter(|(_, value)| value.is_string()).map(|(name, _)| name).collect()
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_give_their_text_or_say_why_not() {
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
