//! A file of settings as it is written: keys with values, each with its line and its place in the text. JSON is YAML, too.
//! Not here: what keys mean, and how a text is edited (`rewrite/`).

use plimsoll_units::Bytes;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

/// References within references, as in `${output_dir}`.
const REFERENCES_MAX: usize = 8;

/// No value that a reference stands in is longer.
const RESOLVED_BYTES_MAX: Bytes = Bytes(1 << 16);

/// A value and its line.
#[derive(Debug, Clone)]
pub struct Node {
    /// From 1.
    pub line: u64,
    /// The value.
    pub value: Value,
    /// The bytes of the text that a scalar stands in; of a list or map, where it begins.
    pub place: Range<usize>,
}

/// What stands behind a key.
#[derive(Debug, Clone)]
pub enum Value {
    /// Nothing.
    Null,
    /// A value as it would be written behind a flag.
    Plain(String),
    /// Values.
    List(Vec<Node>),
    /// Keys with values.
    Map(Vec<Entry>),
    /// What a notebook computes.
    Code,
}

/// A key with its value.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Of the key, from 1.
    pub line: u64,
    /// The value.
    pub value: Value,
    /// Where both stand in the text; empty for what was read off something else.
    pub place: Place,
}

/// Bytes of a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// Those of the key, quotes included.
    pub key: Range<usize>,
    /// Those of a scalar; of a list or map, where it begins.
    pub value: Range<usize>,
}

/// Keys and their values.
#[derive(Debug, Clone, Default)]
pub struct Document(pub Vec<Entry>);

impl Document {
    /// Errors: no YAML, or no keys with values; in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let document: Option<Self> = serde_saphyr::from_str(text).map_err(|error| {
            format!("settings are not valid YAML: {}", error.to_string().trim_start_matches("error: "))
        })?;
        Ok(document.unwrap_or_default())
    }

    /// The plain value of a key, whose keys within keys are joined by dots.
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

    /// A value in which `${key}` stands for the value of that key, as torchtune's files have it.
    /// Errors: no such key has a plain value, in words.
    pub fn resolve(&self, text: &str) -> Result<String, String> {
        let mut text = text.to_owned();
        for _ in 0..REFERENCES_MAX {
            let Some(start) = text.find("${") else { return Ok(text) };
            let Some(length) = text[start..].find('}') else { return Ok(text) };
            let path = &text[start + 2..start + length];
            let value = self.plain(path).ok_or_else(|| format!("`${{{path}}}` is set nowhere"))?;
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
            _ => Err(D::Error::custom("keys with values are expected")),
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
            let place = Place { key: bytes_of(key.referenced), value: bytes_of(referenced) };
            entries.push(Entry { key: key.value, line: key.referenced.line(), value, place });
        }
        Ok(Value::Map(entries))
    }
}

/// The bytes that a location names.
fn bytes_of(location: Location) -> Range<usize> {
    let span = location.span();
    let start = span.byte_offset().unwrap_or_default() as usize;
    start..start + span.byte_len().unwrap_or_default() as usize
}

/// A text that is shown, without the rest of one that is long.
pub fn cut(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(40) {
        Some(_) => format!("{}…", text.chars().take(39).collect::<String>()).into(),
        None => text.into(),
    }
}

impl fmt::Display for Value {
    /// In a line, cut where it is long.
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
    fn values_know_their_lines_in_yaml_and_in_json() {
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
    fn references_are_followed_but_not_round_and_round() {
        let text = "out: /tmp/x\nlogs:\n  dir: ${out}/logs\na: ${b}\nb: ${a}\nlong: ${long}${long}\n";
        let document = Document::parse(text).expect("valid");
        assert_eq!(document.resolve("${logs.dir}/1 and ${out}").as_deref(), Ok("/tmp/x/logs/1 and /tmp/x"));
        assert_eq!(document.resolve("${nothing}").unwrap_err(), "`${nothing}` is set nowhere");
        assert_eq!(document.resolve("${logs}").unwrap_err(), "`${logs}` is set nowhere");
        for endless in ["${a}", "${long}"] {
            assert_eq!(document.resolve(endless).unwrap_err(), "it refers to too many other keys");
        }
        assert_eq!(document.resolve("${unclosed").as_deref(), Ok("${unclosed"));
    }
}
