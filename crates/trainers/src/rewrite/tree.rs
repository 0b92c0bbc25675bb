//! A document without notation, order and lines. Used to verify an edit of a text.

use super::edit::{Edit, Literal};
use crate::document::{Document, Node, Value};
use std::collections::BTreeMap;

/// A value independent of notation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tree {
    Null,
    Plain(String),
    List(Vec<Tree>),
    Map(BTreeMap<String, Tree>),
}

impl Tree {
    pub(crate) fn of(document: &Document) -> Self {
        Self::of_value(&Value::Map(document.0.clone()))
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::Null | Value::Code => Self::Null,
            Value::Plain(text) => Self::Plain(text.clone()),
            Value::List(items) => Self::List(items.iter().map(|Node { value, .. }| Self::of_value(value)).collect()),
            Value::Map(entries) => {
                Self::Map(entries.iter().map(|entry| (entry.key.clone(), Self::of_value(&entry.value))).collect())
            }
        }
    }

    fn of_literal(literal: &Literal) -> Self {
        match literal {
            Literal::Null => Self::Null,
            Literal::Bool(value) => Self::Plain(value.to_string()),
            Literal::Number(value) => Self::Plain(value.to_string()),
            Literal::Text(text) => Self::Plain(text.clone()),
            Literal::Decimal(text) => Self::Plain(as_read(text)),
            Literal::List(items) => Self::List(items.iter().cloned().map(Self::Plain).collect()),
        }
    }

    /// The value of a key.
    pub(crate) fn find(&self, keys: &[&str]) -> Option<&Self> {
        match (self, keys) {
            (tree, []) => Some(tree),
            (Self::Map(map), [key, rest @ ..]) => map.get(*key)?.find(rest),
            _ => None,
        }
    }

    /// The document after an edit.
    pub(crate) fn edited(mut self, edit: &Edit) -> Self {
        let keys = edit.key().split('.').collect::<Vec<_>>();
        match edit {
            Edit::Set(_, literal) => self.set(&keys, Self::of_literal(literal)),
            Edit::Replace(_, literal) if self.find(&keys).is_some() => self.set(&keys, Self::of_literal(literal)),
            Edit::Replace(..) => {}
            Edit::Remove(_) => self.remove(&keys),
            Edit::Push(_, item) => {
                let mut items = match self.find(&keys) {
                    Some(Self::List(items)) => items.clone(),
                    _ => vec![],
                };
                if !items.contains(&Self::Plain(item.clone())) {
                    items.push(Self::Plain(item.clone()));
                }
                self.set(&keys, Self::List(items));
            }
        }
        self
    }

    fn set(&mut self, keys: &[&str], value: Self) {
        let [key, rest @ ..] = keys else {
            *self = value;
            return;
        };
        if !matches!(self, Self::Map(_)) {
            *self = Self::Map(BTreeMap::new());
        }
        if let Self::Map(map) = self {
            map.entry((*key).to_owned()).or_insert(Self::Null).set(rest, value);
        }
    }

    /// Removes a key, and outer maps that become empty.
    fn remove(&mut self, keys: &[&str]) {
        let (Self::Map(map), [key, rest @ ..]) = (self, keys) else { return };
        let Some(inner) = map.get_mut(*key) else { return };
        if !rest.is_empty() {
            let was_empty = *inner == Self::Map(BTreeMap::new());
            inner.remove(rest);
            if was_empty || *inner != Self::Map(BTreeMap::new()) {
                return;
            }
        }
        map.remove(*key);
    }
}

/// A number as the parser reads it, independent of its notation.
fn as_read(text: &str) -> String {
    let whole = text.parse::<i64>().map(|number| number.to_string());
    whole.or_else(|_| text.parse::<f64>().map(|number| number.to_string())).unwrap_or_else(|_| text.to_owned())
}
