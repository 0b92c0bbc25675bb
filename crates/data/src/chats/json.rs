//! JSON as Python's `json.dumps` writes it, which chat templates ask for: a space behind colons and commas, no escapes
//! beyond ASCII, `indent` where it is given.
//! Not here: numbers that JSON has not (`NaN`), which Python writes and this refuses.

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::io::{self, Write};

/// The filter `tojson`. Escapes nothing for HTML, as `transformers` does.
#[expect(clippy::needless_pass_by_value, reason = "the form that the library calls filters in")]
pub(super) fn tojson(value: &Value, arguments: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = arguments.get("indent")?;
    // Those that leave the text as it is; others are refused.
    let (_, _): (Option<bool>, Option<Value>) = (arguments.get("ensure_ascii")?, arguments.get("separators")?);
    arguments.assert_all_used()?;
    let text = match indent {
        None => written(value, Spaced),
        Some(width) => written(value, PrettyFormatter::with_indent(" ".repeat(width.min(INDENT_MAX)).as_bytes())),
    };
    let refused = |error| Error::new(ErrorKind::InvalidOperation, "can't be written as JSON").with_source(error);
    text.map(Value::from).map_err(refused)
}

const INDENT_MAX: usize = 16;

fn written(value: &Value, formatter: impl Formatter) -> serde_json::Result<String> {
    let mut text = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut text, formatter))?;
    Ok(String::from_utf8(text).expect("JSON is text"))
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        if is_first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, is_first: bool) -> io::Result<()> {
        if is_first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_pythons() {
        let value: Value = serde_json::from_str(r#"{"z":[1,2.5,true,null],"a":{"b":"é<&>\n"},"e":[]}"#).unwrap();
        let json =
            |arguments: &[(&str, Value)]| tojson(&value, arguments.iter().cloned().collect()).unwrap().to_string();
        assert_eq!(json(&[]), r#"{"z": [1, 2.5, true, null], "a": {"b": "é<&>\n"}, "e": []}"#);
        let indented = "{\n  \"z\": [\n    1,\n    2.5,\n    true,\n    null\n  ],\n  \"a\": {\n    \"b\": \"é<&>\\n\"\n  },\n  \"e\": []\n}";
        assert_eq!(json(&[("indent", Value::from(2))]), indented);
        assert!(tojson(&value, [("sort_keys", Value::from(true))].into_iter().collect()).is_err());
    }
}
