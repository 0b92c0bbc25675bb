//! The contents of a pickle: values that refer to lists, dictionaries and texts of the document by index.

use std::borrow::Cow;

/// A value. Containers and texts are indices into the [`Document`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer of at most 64 bits.
    Int(i64),
    /// An integer beyond 64 bits. Its digits are not stored.
    HugeInt,
    /// A floating-point number.
    Float(f64),
    /// Text.
    Text(u32),
    /// Bytes, which are not stored.
    Bytes,
    /// A list.
    List(u32),
    /// A tuple.
    Tuple(u32),
    /// A dictionary.
    Dict(u32),
}

/// A pickle's values and its root.
#[derive(Debug, PartialEq)]
pub struct Document<'a> {
    pub(super) texts: Vec<Cow<'a, str>>,
    /// Lists and tuples.
    pub(super) lists: Vec<Vec<Value>>,
    pub(super) dicts: Vec<Vec<(Value, Value)>>,
    pub(super) root: Value,
    /// Number of values pushed by the pickle: a walk that visits more repeats some.
    pub(super) pushed: usize,
}

impl Document<'_> {
    /// The pickled value.
    pub fn root(&self) -> Value {
        self.root
    }

    /// Number of values created by the pickle: a walk that visits more repeats some.
    pub fn len(&self) -> usize {
        self.pushed
    }

    /// Whether the pickle created no value; false for every pickle that was read.
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

    /// The entries of a dictionary in insertion order: if a key is repeated, the last wins.
    pub fn entries(&self, value: Value) -> Option<&[(Value, Value)]> {
        match value {
            Value::Dict(index) => Some(&self.dicts[index as usize]),
            _ => None,
        }
    }

    /// The value of a text key in a dictionary.
    pub fn get(&self, dict: Value, key: &str) -> Option<Value> {
        let entries = self.entries(dict)?;
        entries.iter().rev().find(|(name, _)| self.text(*name) == Some(key)).map(|(_, value)| *value)
    }
}
