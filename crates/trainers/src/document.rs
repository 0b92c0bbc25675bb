//! A parsed settings file: keys with values, each with its line and its byte range. JSON is also YAML.
//! Not here: the meaning of keys (`keys/`), and editing a text (`rewrite/`).

use plimsoll_units::Bytes;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

/// Limit on nested references such as `${output_dir}`.
const REFERENCES_MAX: usize = 8;

/// Size limit of a value with references.
const RESOLVED_BYTES_MAX: Bytes = Bytes(1 << 16);

/// A value and its line.
#[derive(Debug, Clone)]
pub struct Node {
    /// From 1.
    pub line: u64,
    /// The value.
    pub value: Value,
    /// The byte range of a scalar, or the start of a list or map.
    pub place: Range<usize>,
}

/// The value of a key.
#[derive(Debug, Clone)]
pub enum Value {
    /// No value.
    Null,
    /// A scalar, as it would be written after a flag.
    Plain(String),
    /// Values.
    List(Vec<Node>),
    /// Keys with values.
    Map(Vec<Entry>),
    /// An expression in a notebook.
    Code,
}

/// A key with its value.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The line of the key, from 1.
    pub line: u64,
    /// The value.
    pub value: Value,
    /// The byte ranges of both; empty if the entry is not from a text.
    pub place: EntryPlace,
}

/// Byte ranges in a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntryPlace {
    /// The key, including quotes.
    pub key: Range<usize>,
    /// The scalar, or the start of a list or map.
    pub value: Range<usize>,
}

/// Keys and their values.
#[derive(Debug, Clone, Default)]
pub struct Document(pub Vec<Entry>);

impl Document {
    /// Parses a text. Errors: a message if it is not valid YAML or not a map.
    pub fn parse(text: &str) -> Result<Self, String> {
        let document: Option<Self> = serde_saphyr::from_str(text).map_err(|error| {
            format!("settings are not valid YAML: {}", error.to_string().trim_start_matches("error: "))
        })?;
        Ok(document.unwrap_or_default())
    }

    /// The plain value of a key. Dots separate nested keys.
    pub fn plain(&self, path: &str) -> Option<&str> {
        let (mut entries, mut found) = (&self.0, None);
        for key in path.split('.') {
            match &entries.iter().find(|entry| entry.key == key)?.value {
                Value::Map(inner) => entries = inner,
                Value::Plain(text) => found = Some(text.as_str()),
                _ => return None,
            }
        }
        found
    }

    /// Replaces `${key}` in a value with the value of that key, as in torchtune's files.
    /// Errors: a message if a key has no plain value.
    pub fn resolve(&self, text: &str) -> Result<String, String> {
        let mut text = text.to_owned();
        for _ in 0..REFERENCES_MAX {
            let Some(start) = text.find("${") else { return Ok(text) };
            let Some(length) = text[start..].find('}') else { return Ok(text) };
            let path = &text[start + 2..start + length];
            let value = self.plain(path).ok_or_else(|| format!("`${{{path}}}` is not set"))?;
            text = text.replace(&format!("${{{path}}}"), value);
            if text.len() as u64 > RESOLVED_BYTES_MAX.0 {
                break;
            }
        }
        if text.contains("${") { Err("it refers to too many other keys".to_owned()) } else { Ok(text) }
    }
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Map(entries) => Ok(Self(entries)),
            _ => Err(D::Error::custom("expected keys with values")),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, referenced, .. } = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self { line: referenced.line(), value, place: bytes_of(referenced) })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Plain(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Plain(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Plain(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Plain(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Plain(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = sequence.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let Spanned { value, referenced, .. } = map.next_value::<Spanned<Value>>()?;
            let place = EntryPlace { key: bytes_of(key.referenced), value: bytes_of(referenced) };
            entries.push(Entry { key: key.value, line: key.referenced.line(), value, place });
        }
        Ok(Value::Map(entries))
    }
}

/// The byte range of a location.
fn bytes_of(location: Location) -> Range<usize> {
    let span = location.span();
    let start = span.byte_offset().unwrap_or_default() as usize;
    start..start + span.byte_len().unwrap_or_default() as usize
}

/// Truncates a long text for display.
pub fn cut(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(40) {
        Some(_) => format!("{}…", text.chars().take(39).collect::<String>()).into(),
        None => text.into(),
    }
}

impl fmt::Display for Value {
    /// The value in one line, truncated.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Code => f.write_str("…"),
            Self::Plain(text) => f.write_str(&cut(text)),
            Self::List(items) if items.is_empty() => f.write_str("[]"),
            Self::List(items) => write!(f, "[{}{}]", items[0].value, if items.len() > 1 { ", …" } else { "" }),
            Self::Map(entries) if entries.is_empty() => f.write_str("{}"),
            Self::Map(entries) => {
                let (key, more) = (&entries[0].key, if entries.len() > 1 { ", …" } else { "" });
                write!(f, "{{{key}: …{more}}}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_their_lines_in_yaml_and_in_json() {
        for text in [
            "a: 1\nb:\n  c: [x,\n   y]\n# words\n'd': 2e-5\n",
            "{\"a\": 1,\n\"b\":\n {\"c\": [\"x\",\n\"y\"]},\n\n\"d\": 2e-5}",
        ] {
            let document = Document::parse(text).expect("valid");
            let lines = document.0.iter().map(|entry| (entry.key.as_str(), entry.line)).collect::<Vec<_>>();
            assert_eq!(lines, [("a", 1), ("b", 2), ("d", 6)], "{text}");
            let Value::Map(inner) = &document.0[1].value else { panic!("{document:?}") };
            let Value::List(items) = &inner[0].value else { panic!("{document:?}") };
            assert_eq!((inner[0].line, items[0].line, items[1].line), (3, 3, 4), "{text}");
            assert_eq!(document.0[2].value.to_string(), "0.00002");
        }
    }

    #[test]
    fn references_are_resolved_without_endless_cycles() {
        let text = "out: /tmp/x\nlogs:\n  dir: ${out}/logs\na: ${b}\nb: ${a}\nlong: ${long}${long}\n";
        let document = Document::parse(text).expect("valid");
        assert_eq!(document.resolve("${logs.dir}/1 and ${out}").as_deref(), Ok("/tmp/x/logs/1 and /tmp/x"));
        assert_eq!(document.resolve("${nothing}").unwrap_err(), "`${nothing}` is not set");
        assert_eq!(document.resolve("${logs}").unwrap_err(), "`${logs}` is not set");
        for endless in ["${a}", "${long}"] {
            assert_eq!(document.resolve(endless).unwrap_err(), "it refers to too many other keys");
        }
        assert_eq!(document.resolve("${unclosed").as_deref(), Ok("${unclosed"));
    }
}
