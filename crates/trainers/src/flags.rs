//! Parses arguments as settings, in the three styles that trainers use, with their indexes.
//! Not here: finding a trainer's arguments (`command.rs`), and changing them (`rewrite/flags.rs`).

use crate::document::{Document, Entry, EntryPlace, Value};
use std::ops::Range;

/// The style of settings on a trainer's command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// Python's argparse: `--key value`, `--key=value`, `--key a b`, `--key` alone.
    Argparse,
    /// The package click: `--key value`, `--key` and `--no-key`, with hyphens only.
    Click,
    /// OmegaConf: `key=value`, `outer.key=value`, `~key`.
    Assign,
}

/// A setting among arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flag {
    /// The key with underscores, without leading hyphens.
    pub(crate) key: String,
    /// The index of the argument with the key.
    pub(crate) at: usize,
    /// The indexes of the arguments with its values; empty if the value follows an equals sign or is missing.
    pub(crate) values: Range<usize>,
    /// The value after an equals sign.
    pub(crate) inline: Option<String>,
    /// Whether it sets the key to false or removes it.
    pub(crate) negates: bool,
}

/// The settings in arguments, from this index up to `--`.
pub(crate) fn flags(argv: &[String], from: usize, style: Style) -> Vec<Flag> {
    let end = (from..argv.len()).find(|at| argv[*at] == "--").unwrap_or(argv.len());
    let mut found = vec![];
    let mut at = from;
    while at < end {
        let next = at + 1;
        let flag = match style {
            Style::Assign => assigned(&argv[at], at),
            _ => argv[at].strip_prefix("--").map(|word| {
                let is_value = |at: &usize| *at < end && !argv[*at].starts_with("--");
                let max = if style == Style::Click { 1 } else { usize::MAX };
                let count = (next..end).take_while(is_value).take(max).count();
                hyphenated(word, at, next..next + count, style)
            }),
        };
        at = flag.as_ref().map_or(next, |flag| flag.values.end.max(next));
        found.extend(flag);
    }
    found
}

/// Parses an argument without its leading hyphens.
fn hyphenated(word: &str, at: usize, values: Range<usize>, style: Style) -> Flag {
    if let Some((key, value)) = word.split_once('=') {
        let (key, inline) = (key.replace('-', "_"), Some(value.to_owned()));
        return Flag { key, at, values: at + 1..at + 1, inline, negates: false };
    }
    match word.strip_prefix("no-").filter(|_| style == Style::Click) {
        Some(key) => Flag { key: key.replace('-', "_"), at, values: at + 1..at + 1, inline: None, negates: true },
        None => Flag { key: word.replace('-', "_"), at, values, inline: None, negates: false },
    }
}

fn assigned(word: &str, at: usize) -> Option<Flag> {
    let none = at + 1..at + 1;
    if let Some(key) = word.strip_prefix('~').filter(|key| !key.is_empty()) {
        return Some(Flag { key: key.to_owned(), at, values: none, inline: None, negates: true });
    }
    let (key, value) = word.split_once('=').filter(|(key, _)| !key.is_empty() && !key.starts_with('-'))?;
    Some(Flag { key: key.to_owned(), at, values: none, inline: Some(value.to_owned()), negates: false })
}

/// Reads arguments as a document. Its lines are the indexes of arguments, from 1. The last duplicate wins.
pub(crate) fn read(argv: &[String], from: usize, style: Style) -> Document {
    let mut document = Document::default();
    for flag in flags(argv, from, style) {
        let value = value_of(&flag, argv, style);
        let keys: Vec<&str> = if style == Style::Assign { flag.key.split('.').collect() } else { vec![&flag.key] };
        insert(&mut document.0, &keys, value, flag.at as u64 + 1);
    }
    document
}

fn value_of(flag: &Flag, argv: &[String], style: Style) -> Value {
    let values = &argv[flag.values.clone()];
    match (&flag.inline, values) {
        (None, []) if flag.negates && style == Style::Assign => Value::Null,
        (None, []) => Value::Plain((!flag.negates).to_string()),
        (Some(value), _) => parsed(value),
        (None, [value]) => parsed(value),
        (None, values) => {
            let node = |value: &String| crate::document::Node {
                line: flag.at as u64 + 1,
                value: Value::Plain(value.clone()),
                place: 0..0,
            };
            Value::List(values.iter().map(node).collect())
        }
    }
}

/// Parses the value of an argument: lists and objects as in files, other text as is.
fn parsed(text: &str) -> Value {
    if text.starts_with(['[', '{']) {
        let document = Document::parse(&format!("value: {text}"));
        if let Some(entry) = document.ok().and_then(|document| document.0.into_iter().next()) {
            return entry.value;
        }
    }
    match text {
        "null" | "None" => Value::Null,
        text => Value::Plain(text.to_owned()),
    }
}

fn insert(entries: &mut Vec<Entry>, keys: &[&str], value: Value, line: u64) {
    let [key, rest @ ..] = keys else { return };
    let at = entries.iter().position(|entry| entry.key == *key).unwrap_or_else(|| {
        entries.push(Entry { key: (*key).to_owned(), line, value: Value::Null, place: EntryPlace::default() });
        entries.len() - 1
    });
    let entry = &mut entries[at];
    entry.line = line;
    match rest {
        [] => entry.value = value,
        rest => {
            if !matches!(entry.value, Value::Map(_)) {
                entry.value = Value::Map(vec![]);
            }
            if let Value::Map(inner) = &mut entry.value {
                insert(inner, rest, value, line);
            }
        }
    }
}

/// Merges two documents key by key. Settings of `above` win.
pub(crate) fn overlay(below: &Document, above: &Document) -> Document {
    let mut entries = below.0.clone();
    lay_over(&mut entries, &above.0);
    Document(entries)
}

fn lay_over(below: &mut Vec<Entry>, above: &[Entry]) {
    for entry in above {
        match below.iter_mut().find(|other| other.key == entry.key) {
            Some(Entry { value: Value::Map(inner), .. }) if let Value::Map(over) = &entry.value => {
                lay_over(inner, over);
            }
            Some(other) => *other = entry.clone(),
            None => below.push(entry.clone()),
        }
    }
}
