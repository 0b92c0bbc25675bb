//! Edits of settings, and values to write, independent of a file's notation.

use std::fmt::Write as _;

/// A value to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Number(u64),
    /// A number with a decimal point or an exponent, as written.
    Decimal(String),
    Text(String),
    List(Vec<String>),
}

/// An edit of a document. Dots separate nested keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Edit {
    /// Set the key to this value; add it if it is missing.
    Set(String, Literal),
    /// Set the key to this value if it exists.
    Replace(String, Literal),
    /// Remove the key.
    Remove(String),
    /// Add this item to the key's list, unless it is in the list.
    Push(String, String),
}

impl Edit {
    pub(crate) fn set(key: &str, value: impl Into<Literal>) -> Self {
        Self::Set(key.to_owned(), value.into())
    }

    pub(crate) fn replace(key: &str, value: impl Into<Literal>) -> Self {
        Self::Replace(key.to_owned(), value.into())
    }

    pub(crate) fn remove(key: &str) -> Self {
        Self::Remove(key.to_owned())
    }

    pub(crate) fn push(key: &str, item: &str) -> Self {
        Self::Push(key.to_owned(), item.to_owned())
    }

    /// The same edit relative to a key; `None` if the edit is outside of it.
    pub(crate) fn within(&self, key: &str) -> Option<Self> {
        let rest = self.key().strip_prefix(key)?.strip_prefix('.')?.to_owned();
        Some(match self.clone() {
            Self::Set(_, value) => Self::Set(rest, value),
            Self::Replace(_, value) => Self::Replace(rest, value),
            Self::Remove(_) => Self::Remove(rest),
            Self::Push(_, item) => Self::Push(rest, item),
        })
    }

    /// The key. Dots separate nested keys.
    pub(crate) fn key(&self) -> &str {
        match self {
            Self::Set(key, _) | Self::Replace(key, _) | Self::Remove(key) | Self::Push(key, _) => key,
        }
    }
}

impl From<bool> for Literal {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<u64> for Literal {
    fn from(value: u64) -> Self {
        Self::Number(value)
    }
}

impl From<&str> for Literal {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<Vec<String>> for Literal {
    fn from(value: Vec<String>) -> Self {
        Self::List(value)
    }
}

/// The notation of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notation {
    /// YAML, with quotes only where needed.
    Yaml,
    /// JSON, with all quotes.
    Json,
}

impl Notation {
    pub(crate) fn text(self, text: &str) -> String {
        if self == Self::Yaml && is_plain(text) { text.to_owned() } else { quoted(text) }
    }

    pub(crate) fn literal(self, literal: &Literal) -> String {
        match literal {
            Literal::Null => "null".to_owned(),
            Literal::Bool(value) => value.to_string(),
            Literal::Number(value) => value.to_string(),
            Literal::Decimal(text) => text.clone(),
            Literal::Text(text) => self.text(text),
            Literal::List(items) => {
                format!("[{}]", items.iter().map(|item| self.text(item)).collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// A value under nested keys: `{a: {b: 1}}`.
    pub(crate) fn nested(self, keys: &[&str], literal: &Literal) -> String {
        let mut written = String::new();
        for key in keys {
            written.push('{');
            written += &self.text(key);
            written += ": ";
        }
        written += &self.literal(literal);
        written + &"}".repeat(keys.len())
    }
}

/// Whether old and new YAML read a text as a string without quotes, also inside brackets.
fn is_plain(text: &str) -> bool {
    const WORDS: &[&str] = &["true", "false", "yes", "no", "on", "off", "y", "n", "null", "none"];
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '/');
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    begins && text.chars().all(is_word) && !WORDS.contains(&text.to_ascii_lowercase().as_str())
}

/// A quoted JSON string, which is also valid YAML.
fn quoted(text: &str) -> String {
    let mut written = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => written.extend(['\\', c]),
            c if c.is_control() => write!(written, "\\u{:04x}", u32::from(c)).expect("a string"),
            c => written.push(c),
        }
    }
    written + "\""
}
