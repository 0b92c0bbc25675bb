//! A file of settings as it is written: keys with values, each with its line. JSON is YAML, too.

use plimsoll_units::Bytes;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use std::borrow::Cow;
use std::fmt;

/// References within references, as in `${output_dir}`.
const REFERENCES_MAX: usize = 8;

/// No value that a reference stands in is longer.
const RESOLVED_BYTES_MAX: Bytes = Bytes(1 << 16);

/// A value and its line, from 1.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) line: u64,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    Null,
    /// A value as it would be written behind a flag.
    Plain(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
    /// What a notebook computes.
    Code,
}

/// A key with its value.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: u64,
    pub(super) value: Value,
}

/// Keys and their values.
#[derive(Debug, Default)]
pub(super) struct Document(pub(super) Vec<Entry>);

impl Document {
    /// Errors: no YAML, or no keys with values; in words.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let document: Option<Self> = serde_saphyr::from_str(text).map_err(|error| {
            format!("settings are not valid YAML: {}", error.to_string().trim_start_matches("error: "))
        })?;
        Ok(document.unwrap_or_default())
    }

    /// The plain value of a key, whose keys within keys are joined by dots.
    pub(super) fn plain(&self, path: &str) -> Option<&str> {
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
    pub(super) fn resolve(&self, text: &str) -> Result<String, String> {
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
        Ok(Self { line: referenced.line(), value })
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
            let value = map.next_value()?;
            entries.push(Entry { key: key.value, line: key.referenced.line(), value });
        }
        Ok(Value::Map(entries))
    }
}

/// A text that is shown, without the rest of one that is long.
pub(super) fn cut(text: &str) -> Cow<'_, str> {
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
