//! Edits a text in YAML or JSON without touching other bytes: comments, order, quotes, line ends.
//! The parser provides the positions of values. The result is parsed again and compared with the intended document, so
//! that an edit that would change anything else, such as the target of an alias, is rejected.

use super::edit::{Edit, Literal, Notation};
use super::tree::Tree;
use crate::document::{Document, Entry, Node, Value};
use std::ops::Range;
use std::slice::SliceIndex;

/// Makes an edit; `None` if it would change anything else.
pub(crate) fn apply(text: &str, document: &Document, edit: &Edit) -> Option<String> {
    let before = Tree::of(document);
    let after = before.clone().edited(edit);
    if before == after {
        return Some(text.to_owned());
    }
    let keys = edit.key().split('.').collect::<Vec<_>>();
    let editor = Editor { text, root: &document.0 };
    let candidates = match edit {
        Edit::Set(_, literal) | Edit::Replace(_, literal) => editor.set(&keys, literal),
        Edit::Remove(_) => editor.remove(&keys),
        Edit::Push(_, item) => editor.push(&keys, item),
    };
    candidates.into_iter().find(|text| Document::parse(text).is_ok_and(|document| Tree::of(&document) == after))
}

struct Editor<'t> {
    text: &'t str,
    root: &'t [Entry],
}

/// The existing part of a path: the entry of its last existing key, and entries to continue in.
struct Found<'t> {
    entry: Option<&'t Entry>,
    /// The nested entries if the entry is a map, otherwise its siblings.
    entries: &'t [Entry],
    /// The start of the map of these entries; `None` for the top level.
    opening: Option<usize>,
    /// The number of keys of the path that exist.
    depth: usize,
}

impl<'t> Editor<'t> {
    /// Follows a path as far as it exists.
    fn find(&self, keys: &[&str]) -> Found<'t> {
        let mut found = Found { entry: None, entries: self.root, opening: None, depth: 0 };
        for key in keys {
            let Some(entry) = found.entries.iter().find(|entry| entry.key == *key) else { break };
            found.entry = Some(entry);
            found.depth += 1;
            match &entry.value {
                Value::Map(inner) => {
                    found.entries = inner;
                    found.opening = Some(entry.place.value.start);
                }
                _ => break,
            }
        }
        found
    }

    /// Candidate texts in which a key has a value, the best first.
    fn set(&self, keys: &[&str], literal: &Literal) -> Vec<String> {
        let found = self.find(keys);
        let rest = &keys[found.depth..];
        match found.entry {
            Some(entry) if rest.is_empty() || !matches!(entry.value, Value::Map(_)) => {
                let written = self.notation().nested(rest, literal);
                self.replace(entry, &written)
            }
            _ => {
                let written = self.notation().nested(&rest[1..], literal);
                self.add(&found, rest[0], &written)
            }
        }
    }

    /// The notation of the text: JSON if all of it is in braces.
    fn notation(&self) -> Notation {
        if self.opens_flow(None) { Notation::Json } else { Notation::Yaml }
    }

    /// Whether a map is in braces. `opening`: its start; `None` for the top level.
    fn opens_flow(&self, opening: Option<usize>) -> bool {
        self.brace(opening).is_some()
    }

    /// The position of a map's opening brace, if it has one.
    fn brace(&self, opening: Option<usize>) -> Option<usize> {
        let from = opening.or_else(|| self.start())?;
        self.text.get(from..)?.starts_with('{').then_some(from)
    }

    /// The start of the first value, after comments and the document marker.
    fn start(&self) -> Option<usize> {
        let mut start = self.text.len() - self.text.trim_start_matches('\u{feff}').len();
        for line in self.part(start..).split_inclusive('\n') {
            let content = line.trim();
            if !content.is_empty() && !content.starts_with('#') && content != "---" {
                return Some(start + line.len() - line.trim_start().len());
            }
            start += line.len();
        }
        None
    }

    /// Candidate texts with a new value for an existing key.
    fn replace(&self, entry: &Entry, written: &str) -> Vec<String> {
        let range = self.value_of(entry);
        let colon = self.part(entry.place.key.end..).find(':').map(|at| entry.place.key.end + at + 1);
        let Some(range) = range else { return vec![] };
        // The parser locates a missing value before the colon.
        let range = if range.is_empty() { colon.map_or(range, |colon| colon..colon) } else { range };
        let spaced = if range.is_empty() { format!(" {written}") } else { written.to_owned() };
        let mut texts = vec![];
        let between = colon.filter(|colon| *colon <= range.start).map(|colon| colon..range.start);
        if let Some(between) = between.filter(|between| self.part(between.clone()).contains('\n')) {
            let is_blank = self.part(between.clone()).trim().is_empty();
            texts.extend(is_blank.then(|| self.with(between.start..range.end, &format!(" {written}"))));
        }
        texts.push(self.with(range.clone(), &spaced));
        texts
    }

    /// The byte range of a whole value.
    fn value_of(&self, entry: &Entry) -> Option<Range<usize>> {
        Some(entry.place.value.start..self.end(&entry.value, &entry.place.value)?)
    }

    /// The end of a value.
    fn end(&self, value: &Value, place: &Range<usize>) -> Option<usize> {
        let last = match value {
            Value::List(items) => items.last().map(|Node { value, place, .. }| self.end(value, place)),
            Value::Map(entries) => entries.last().map(|entry| self.end(&entry.value, &entry.place.value)),
            // A block scalar includes its last line end.
            _ => return Some(place.start + self.text.get(place.clone())?.trim_end_matches(['\r', '\n']).len()),
        };
        let is_alias = self.text.get(place.start..)?.starts_with('*');
        let closing = match self.text.get(place.start..)?.chars().next()? {
            '{' => '}',
            '[' => ']',
            _ if is_alias => return Some(place.end),
            _ => return last?,
        };
        let from = match last {
            Some(last) => last?,
            None => place.start + 1,
        };
        self.closing(from, closing).map(|at| at + 1)
    }

    /// The next closing bracket after whitespace, commas and comments.
    fn closing(&self, from: usize, closing: char) -> Option<usize> {
        let mut in_comment = false;
        for (at, c) in self.text.get(from..)?.char_indices() {
            match c {
                '\n' => in_comment = false,
                _ if in_comment => {}
                '#' => in_comment = true,
                c if c == closing => return Some(from + at),
                c if c.is_whitespace() || c == ',' => {}
                _ => return None,
            }
        }
        None
    }

    /// Candidate texts with a new key in a map.
    fn add(&self, found: &Found, key: &str, written: &str) -> Vec<String> {
        let notation = self.notation();
        let pair = format!("{}: {written}", notation.text(key));
        if let Some(brace) = self.brace(found.opening) {
            let Some(last) = found.entries.last() else { return vec![self.with(brace + 1..brace + 1, &pair)] };
            let Some(end) = self.value_of(last).map(|range| range.end) else { return vec![] };
            let space = self.part(brace + 1..found.entries[0].place.key.start);
            let space = match (space.trim().is_empty(), space.is_empty()) {
                (true, false) => space,
                // The first key directly follows the brace.
                _ => " ",
            };
            return vec![self.with(end..end, &format!(",{space}{pair}"))];
        }
        let newline = if self.text.contains("\r\n") { "\r\n" } else { "\n" };
        let (Some(first), Some(last)) = (found.entries.first(), found.entries.last()) else {
            return vec![self.at_end(&pair, newline)];
        };
        let indent = " ".repeat(self.column(first.place.key.start));
        let Some(end) = self.value_of(last).map(|range| range.end) else { return vec![] };
        // Candidates: after the line of the last key; at the end of the text, if the last value spans several lines;
        // before the first key.
        let after = |at: usize| match self.part(at..).find('\n') {
            Some(length) => self.with(at + length + 1..at + length + 1, &format!("{indent}{pair}{newline}")),
            None => format!("{}{newline}{indent}{pair}{newline}", self.text),
        };
        let start = first.place.key.start;
        vec![
            after(end),
            self.at_end(&format!("{indent}{pair}"), newline),
            self.with(start..start, &format!("{pair}{newline}{indent}")),
        ]
    }

    /// The text with a line added at the end.
    fn at_end(&self, line: &str, newline: &str) -> String {
        let before = if self.text.is_empty() || self.text.ends_with('\n') { "" } else { newline };
        format!("{}{before}{line}{newline}", self.text)
    }

    /// Candidate texts without a key.
    fn remove(&self, keys: &[&str]) -> Vec<String> {
        let found = self.find(keys);
        let (Some(entry), true) = (found.entry, found.depth == keys.len()) else { return vec![] };
        let around = self.find(&keys[..keys.len() - 1]);
        if around.entries.len() == 1 && keys.len() > 1 {
            return self.remove(&keys[..keys.len() - 1]);
        }
        let Some(end) = self.value_of(entry).map(|range| range.end) else { return vec![] };
        if self.opens_flow(around.opening) {
            let start = entry.place.key.start;
            let next = self.part(end..).find(|c: char| !c.is_whitespace() && c != ',').map_or(end, |at| end + at);
            let before = self.part(..start).trim_end().strip_suffix(',').map(str::len);
            let with_next = self.with(start..next, "");
            return before.map(|before| self.with(before..end, "")).into_iter().chain([with_next]).collect();
        }
        let start = self.line_start(entry.place.key.start);
        let end = self.part(end..).find('\n').map_or(self.text.len(), |length| end + length + 1);
        let is_own_line = self.part(start..entry.place.key.start).trim_matches('\u{feff}').trim().is_empty();
        let start = if self.part(start..).starts_with('\u{feff}') { entry.place.key.start } else { start };
        if is_own_line { vec![self.with(start..end, "")] } else { vec![] }
    }

    /// Candidate texts with a new item in a list.
    fn push(&self, keys: &[&str], item: &str) -> Vec<String> {
        let whole = |item: &str| self.set(keys, &Literal::List(vec![item.to_owned()]));
        let found = self.find(keys);
        let (Some(entry), true) = (found.entry, found.depth == keys.len()) else { return whole(item) };
        let Value::List(items) = &entry.value else { return whole(item) };
        let Some(last) = items.last() else { return whole(item) };
        let Some(end) = self.end(&last.value, &last.place) else { return vec![] };
        let written = self.notation().text(item);
        if self.part(entry.place.value.start..).starts_with('[') {
            return vec![self.with(end..end, &format!(", {written}"))];
        }
        let newline = if self.text.contains("\r\n") { "\r\n" } else { "\n" };
        let before = self.part(self.line_start(last.place.start)..last.place.start);
        let Some(indent) = before.find('-').map(|hyphen| &before[..hyphen]) else { return vec![] };
        let line = format!("{indent}- {written}{newline}");
        vec![match self.part(end..).find('\n') {
            Some(length) => self.with(end + length + 1..end + length + 1, &line),
            None => format!("{}{newline}{line}", self.text),
        }]
    }

    /// The column of a position, in characters.
    fn column(&self, at: usize) -> usize {
        self.part(self.line_start(at)..at).trim_start_matches('\u{feff}').chars().count()
    }

    fn line_start(&self, at: usize) -> usize {
        self.part(..at).rfind('\n').map_or(0, |newline| newline + 1)
    }

    /// A part of the text; empty if the range is invalid.
    fn part(&self, range: impl SliceIndex<str, Output = str>) -> &'t str {
        self.text.get(range).unwrap_or_default()
    }

    /// The text with a replaced byte range.
    fn with(&self, range: Range<usize>, written: &str) -> String {
        format!("{}{written}{}", self.part(..range.start), self.part(range.end..))
    }
}
