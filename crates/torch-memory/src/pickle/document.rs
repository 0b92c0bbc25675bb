//! What a pickle holds: values that name lists, dictionaries and texts of the document by index.

use std::borrow::Cow;

/// A value. Those that hold others, or text, name them by index in their [`Document`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// A whole number of at most 64 bits.
    Int(i64),
    /// A whole number beyond 64 bits. Its digits are not kept.
    HugeInt,
    /// A floating-point number.
    Float(f64),
    /// Text.
    Text(u32),
    /// Bytes. They are not kept.
    Bytes,
    /// A list.
    List(u32),
    /// A tuple.
    Tuple(u32),
    /// A dictionary.
    Dict(u32),
}

/// A pickle's values, and which of them is the pickle's.
#[derive(Debug, PartialEq)]
pub struct Document<'a> {
    pub(super) texts: Vec<Cow<'a, str>>,
    /// Lists and tuples.
    pub(super) lists: Vec<Vec<Value>>,
    pub(super) dicts: Vec<Vec<(Value, Value)>>,
    pub(super) root: Value,
    /// How many values the pickle pushed: no honest walk sees more of them.
    pub(super) pushed: usize,
}

impl Document<'_> {
    /// The value that was pickled.
    pub fn root(&self) -> Value {
        self.root
    }

    /// How many values the pickle made: a walk that sees more of them sees some again and again.
    pub fn len(&self) -> usize {
        self.pushed
    }

    /// Whether the pickle made no value, which none that was read does.
    pub fn is_empty(&self) -> bool {
        self.pushed == 0
    }

    /// A text.
    pub fn text(&self, value: Value) -> Option<&str> {
        match value {
            Value::Text(index) => Some(&self.texts[index as usize]),
            _ => None,
        }
    }

    /// The items of a list or a tuple.
    pub fn items(&self, value: Value) -> Option<&[Value]> {
        match value {
            Value::List(index) | Value::Tuple(index) => Some(&self.lists[index as usize]),
            _ => None,
        }
    }

    /// The entries of a dictionary, as they were set: a key may be there twice, and the last counts.
    pub fn entries(&self, value: Value) -> Option<&[(Value, Value)]> {
        match value {
            Value::Dict(index) => Some(&self.dicts[index as usize]),
            _ => None,
        }
    }

    /// What a dictionary has under a text.
    pub fn get(&self, dict: Value, key: &str) -> Option<Value> {
        let entries = self.entries(dict)?;
        entries.iter().rev().find(|(name, _)| self.text(*name) == Some(key)).map(|(_, value)| *value)
    }
}
