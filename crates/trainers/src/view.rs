//! A trainer's settings while they are being read: the reader requests each key by name, and the rest is reported as
//! unknown.
//! Not here: the keys (`keys/`), words whose values do not matter (`words/`), and the result (`read.rs`).

use crate::document::{Document, Entry, Value, cut};
use crate::kind::TrainerKind;
use crate::report::{BadValue, UnknownKey, UnmodeledKey, UsedKey};
use crate::unsure::{Effect, Unsure};
use crate::words::{self, Layout, Memory, fits};
use plimsoll_units::spelling;
use std::collections::BTreeSet;

/// Values that turn something off.
const UNWANTED: &[&str] = &["", "false", "no", "off", "none", "null", "0", "0.0", "-1"];

/// Limit on unknown keys that get a spelling suggestion. A file with more belongs to another program.
const NEAR_MAX: usize = 50;

/// Settings, and the results of reading them.
#[derive(Debug)]
pub(crate) struct View<'d> {
    kind: TrainerKind,
    document: &'d Document,
    leaves: Vec<Leaf<'d>>,
    /// Keys that the reader requested.
    requested: BTreeSet<String>,
    pub(crate) used: Vec<UsedKey>,
    pub(crate) unmodeled: Vec<UnmodeledKey>,
    pub(crate) bad: Vec<BadValue>,
    pub(crate) assumed: Vec<String>,
    assumed_effects: Vec<Effect>,
    /// Whether the settings are for TRL.
    pub(crate) of_trl: bool,
}

/// A key whose value is not a map.
#[derive(Debug)]
struct Leaf<'d> {
    /// The key with underscores. Dots separate nested keys.
    path: String,
    /// The line; `None` for an argument.
    line: Option<u64>,
    value: &'d Value,
    is_known: bool,
}

impl<'d> View<'d> {
    pub(crate) fn new(kind: TrainerKind, document: &'d Document) -> Self {
        let mut leaves = vec![];
        flatten("", &document.0, &mut leaves);
        let (used, unmodeled, bad, assumed) = (vec![], vec![], vec![], vec![]);
        Self {
            kind,
            document,
            leaves,
            requested: BTreeSet::new(),
            used,
            unmodeled,
            bad,
            assumed,
            assumed_effects: vec![],
            of_trl: false,
        }
    }

    /// The trainer.
    pub(crate) fn kind(&self) -> TrainerKind {
        self.kind
    }

    /// The parsed settings.
    pub(crate) fn document(&self) -> &'d Document {
        self.document
    }

    /// Whether a key has a value or nested keys.
    pub(crate) fn has(&self, key: &str) -> bool {
        let within = format!("{key}.");
        self.leaves.iter().any(|leaf| {
            let is_it = leaf.path == key && !matches!(leaf.value, Value::Null);
            is_it || leaf.path.starts_with(&within)
        })
    }

    /// Requests a key and returns whether it has any value.
    pub(crate) fn request(&mut self, key: &str) -> bool {
        self.take(&[key]).is_some()
    }

    /// Requests all of these keys and returns the value of the first one that has any.
    fn take(&mut self, keys: &[&str]) -> Option<(String, Option<u64>, &'d Value)> {
        self.requested.extend(keys.iter().map(|key| (*key).to_owned()));
        let mut found = None;
        for key in keys {
            for leaf in self.leaves.iter_mut().filter(|leaf| leaf.path == *key) {
                leaf.is_known = true;
                if found.is_none() && !matches!(leaf.value, Value::Null) {
                    found = Some((leaf.path.clone(), leaf.line, leaf.value));
                }
            }
        }
        let (key, line, value) = found.clone()?;
        self.used.push(UsedKey { kind: self.kind, key, value: value.to_string(), line });
        found
    }

    fn bad(&mut self, key: String, line: Option<u64>, what: String) {
        self.bad.push(BadValue { kind: self.kind, key, line, what });
    }

    /// A plain value with resolved references.
    pub(crate) fn word(&mut self, keys: &[&str]) -> Option<String> {
        let (key, line, value) = self.take(keys)?;
        match value {
            Value::Plain(text) => match self.document.resolve(text) {
                Ok(text) => return Some(text),
                Err(what) => self.bad(key, line, what),
            },
            other => self.bad(key, line, format!("{other} is not a plain value")),
        }
        None
    }

    /// A whole number; `None` for `auto`.
    pub(crate) fn number(&mut self, keys: &[&str]) -> Option<u64> {
        /// Limit below which a float represents every whole number exactly.
        const MAX: f64 = 9e15;
        let text = self.word(keys)?;
        if text == "auto" {
            return None;
        }
        let plain = text.replace('_', "");
        let number = plain.parse::<u64>().ok();
        let number = number.or_else(|| {
            plain.parse::<f64>().ok().filter(|n| n.fract() == 0.0 && (0.0..MAX).contains(n)).map(|n| n as u64)
        });
        if number.is_none() {
            self.reject_last(&format!("`{}` is not a whole number", cut(&text)));
        }
        number
    }

    /// A whole number above zero.
    pub(crate) fn count(&mut self, keys: &[&str]) -> Option<u64> {
        let number = self.number(keys)?;
        if number == 0 {
            self.reject_last("it must be at least 1");
        }
        Some(number).filter(|number| *number > 0)
    }

    /// A number, possibly infinite; `None` for `auto`.
    pub(crate) fn real(&mut self, keys: &[&str]) -> Option<f64> {
        let text = self.word(keys)?;
        let number = text.parse::<f64>().ok().filter(|number| !number.is_nan());
        if number.is_none() && text != "auto" {
            self.reject_last(&format!("`{}` is not a number", cut(&text)));
        }
        number
    }

    /// A boolean, as spelled in old and new YAML and in Python; `None` for `auto`.
    pub(crate) fn flag(&mut self, keys: &[&str]) -> Option<bool> {
        let text = self.word(keys)?;
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" | "y" => Some(true),
            "false" | "no" | "off" | "0" | "n" | "none" | "" => Some(false),
            "auto" => None,
            _ => {
                self.reject_last(&format!("`{}` is neither true nor false", cut(&text)));
                None
            }
        }
    }

    /// Words in a list, or separated by commas or spaces.
    pub(crate) fn list(&mut self, keys: &[&str]) -> Option<Vec<String>> {
        let (key, line, value) = self.take(keys)?;
        match value {
            Value::Plain(text) => {
                let words = text.split([',', ' ', '|']).map(str::trim).filter(|word| !word.is_empty());
                Some(words.map(str::to_owned).collect())
            }
            Value::List(items) => {
                let words = items.iter().map(|item| match &item.value {
                    Value::Plain(text) => Some(text.clone()),
                    _ => None,
                });
                let words = words.collect::<Option<Vec<_>>>();
                if words.is_none() {
                    self.bad(key, line, format!("{value} has items that are not plain values"));
                }
                words
            }
            other => {
                self.bad(key, line, format!("{other} is not a list"));
                None
            }
        }
    }

    /// Reports an error in the value of the key that was read last.
    pub(crate) fn reject_last(&mut self, what: &str) {
        if let Some(UsedKey { key, line, .. }) = self.used.last().cloned() {
            self.bad(key, line, what.to_owned());
        }
    }

    /// Notes that the key that was read last affects memory but is not modeled exactly. `why`: how it is counted.
    pub(crate) fn note_last(&mut self, effect: Effect, why: &str) {
        if let Some(UsedKey { key, line, .. }) = self.used.last().cloned() {
            self.unmodeled.push(UnmodeledKey { kind: self.kind, key, line, effect, why: why.to_owned() });
        }
    }

    /// Like [`note_last`](Self::note_last), for a key that was read earlier.
    pub(crate) fn note_of(&mut self, key: &str, effect: Effect, why: &str) {
        if let Some(UsedKey { key, line, .. }) = self.used.iter().find(|used| used.key == key).cloned() {
            self.unmodeled.push(UnmodeledKey { kind: self.kind, key, line, effect, why: why.to_owned() });
        }
    }

    /// Records an assumption about a setting without a key, and its possible effect on memory.
    pub(crate) fn assume(&mut self, effect: Effect, what: impl Into<String>) {
        self.assumed.push(what.into());
        self.assumed_effects.push(effect);
    }

    /// The combined uncertainty of all settings that are not modeled exactly.
    pub(crate) fn unsure(&self) -> Unsure {
        let mut unsure = Unsure::default();
        let effects = self.unmodeled.iter().map(|key| key.effect).chain(self.assumed_effects.iter().copied());
        effects.for_each(|effect| unsure.add(effect));
        unsure
    }

    /// Notes keys that are turned on but not modeled. Keys may be patterns. `why`: how they are counted.
    pub(crate) fn note_unmodeled(&mut self, keys: &[&str], effect: Effect, why: &str) {
        self.requested.extend(keys.iter().filter(|key| !key.ends_with('*')).map(|key| (*key).to_owned()));
        for leaf in self.leaves.iter_mut().filter(|leaf| !leaf.is_known && keys.iter().any(|key| fits(key, &leaf.path)))
        {
            leaf.is_known = true;
            if is_wanted(leaf.value) {
                let (key, line, why) = (leaf.path.clone(), leaf.line, why.to_owned());
                self.unmodeled.push(UnmodeledKey { kind: self.kind, key, line, effect, why });
            }
        }
    }

    /// Marks keys that do not affect GPU memory as known. Keys may be patterns.
    pub(crate) fn ignore(&mut self, keys: &[&str]) {
        for leaf in &mut self.leaves {
            leaf.is_known |= keys.iter().any(|key| fits(key, &leaf.path));
        }
    }

    /// Marks the words of this layout as known, and notes those that are turned on but not modeled. Called after the keys
    /// whose values are used.
    pub(crate) fn apply_words(&mut self, layout: Layout) {
        let is_unmodeled = |memory: &Memory| matches!(memory, Memory::Unmodeled(..));
        let unmodeled = words::of_layout(layout).filter(|(_, memory)| is_unmodeled(memory)).map(|(word, _)| word);
        self.requested.extend(unmodeled.filter(|word| !word.ends_with('*')).map(str::to_owned));
        for leaf in self.leaves.iter_mut().filter(|leaf| !leaf.is_known) {
            let Some(memory) = words::memory(layout, &leaf.path) else { continue };
            leaf.is_known = true;
            if let Memory::Unmodeled(_, (effect, why)) = memory
                && is_wanted(leaf.value)
            {
                let (key, line, why) = (leaf.path.clone(), leaf.line, why.to_owned());
                self.unmodeled.push(UnmodeledKey { kind: self.kind, key, line, effect, why });
            }
        }
    }

    /// Unknown keys, each with the known key of the most similar spelling. Leaves out keys that are turned off, which
    /// may belong to another version of the trainer.
    pub(crate) fn unknown(&self) -> Vec<UnknownKey> {
        let unknown = self.leaves.iter().filter(|leaf| !leaf.is_known && is_wanted(leaf.value));
        let keys = unknown.enumerate().map(|(at, leaf)| {
            let near = (at < NEAR_MAX).then(|| self.near(&leaf.path)).flatten();
            UnknownKey { kind: self.kind, key: leaf.path.clone(), line: leaf.line, near }
        });
        keys.collect()
    }

    fn near(&self, key: &str) -> Option<String> {
        spelling::nearest(key, self.requested.iter().map(String::as_str)).map(str::to_owned)
    }
}

/// Whether a value turns something on.
fn is_wanted(value: &Value) -> bool {
    match value {
        Value::Null | Value::Code => false,
        Value::Plain(text) => !UNWANTED.contains(&text.to_ascii_lowercase().as_str()),
        Value::List(items) => !items.is_empty(),
        Value::Map(entries) => !entries.is_empty(),
    }
}

fn flatten<'d>(within: &str, entries: &'d [Entry], leaves: &mut Vec<Leaf<'d>>) {
    for entry in entries {
        let path = format!("{within}{}", entry.key.replace('-', "_"));
        match &entry.value {
            Value::Map(inner) if !inner.is_empty() => flatten(&format!("{path}."), inner, leaves),
            Value::List(items) if items.iter().any(|item| matches!(item.value, Value::Map(_))) => {
                for item in items {
                    if let Value::Map(inner) = &item.value {
                        flatten(&format!("{path}."), inner, leaves);
                    }
                }
            }
            value => {
                let line = (!entry.place.key.is_empty()).then_some(entry.line);
                leaves.push(Leaf { path, line, value, is_known: false });
            }
        }
    }
}
