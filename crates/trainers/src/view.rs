//! A trainer's settings while they are read: each key is asked for by name, and what nobody asked for is told at the end.
//! Not here: which keys there are (`keys/`), and what they come to (`read.rs`).

use crate::document::{Document, Entry, Value, cut};
use crate::kind::Kind;
use crate::read::{BadValue, Told, Unknown, Unmodelled};
use crate::unsure::{Effect, Unsure};
use plimsoll_units::spelling;
use std::collections::BTreeSet;

/// Values that say that something is not wanted.
const UNWANTED: &[&str] = &["", "false", "no", "off", "none", "null", "0", "0.0", "-1"];

/// Unknown keys for which the nearest known one is looked for; a file with more is none of this trainer's.
const NEAR_MAX: usize = 50;

/// Settings, and what was read of them.
#[derive(Debug)]
pub(crate) struct View<'d> {
    kind: Kind,
    document: &'d Document,
    leaves: Vec<Leaf<'d>>,
    /// Keys that were asked for.
    asked: BTreeSet<String>,
    pub(crate) told: Vec<Told>,
    pub(crate) unmodelled: Vec<Unmodelled>,
    pub(crate) bad: Vec<BadValue>,
    pub(crate) assumed: Vec<String>,
    assumed_effects: Vec<Effect>,
    /// Whether TRL is known to read them, by the command.
    pub(crate) of_trl: bool,
}

/// A key with its value, which is no map.
#[derive(Debug)]
struct Leaf<'d> {
    /// With underscores, keys within keys joined by dots.
    path: String,
    /// None for an argument.
    line: Option<u64>,
    value: &'d Value,
    used: bool,
}

impl<'d> View<'d> {
    pub(crate) fn new(kind: Kind, document: &'d Document) -> Self {
        let mut leaves = vec![];
        flatten("", &document.0, &mut leaves);
        let (told, unmodelled, bad, assumed) = (vec![], vec![], vec![], vec![]);
        Self {
            kind,
            document,
            leaves,
            asked: BTreeSet::new(),
            told,
            unmodelled,
            bad,
            assumed,
            assumed_effects: vec![],
            of_trl: false,
        }
    }

    /// Whose they are.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The settings as they are written.
    pub(crate) fn document(&self) -> &'d Document {
        self.document
    }

    /// Whether a key is there with a value, or keys within it are.
    pub(crate) fn has(&self, key: &str) -> bool {
        let within = format!("{key}.");
        self.leaves.iter().any(|leaf| {
            let is_it = leaf.path == key && !matches!(leaf.value, Value::Null);
            is_it || leaf.path.starts_with(&within)
        })
    }

    /// Whether a key has a value, whatever it is, which is what counts.
    pub(crate) fn counts(&mut self, key: &str) -> bool {
        self.take(&[key]).is_some()
    }

    /// The value of the first of these keys that has one. All of them were asked for then.
    fn take(&mut self, keys: &[&str]) -> Option<(String, Option<u64>, &'d Value)> {
        self.asked.extend(keys.iter().map(|key| (*key).to_owned()));
        let mut found = None;
        for key in keys {
            for leaf in self.leaves.iter_mut().filter(|leaf| leaf.path == *key) {
                leaf.used = true;
                if found.is_none() && !matches!(leaf.value, Value::Null) {
                    found = Some((leaf.path.clone(), leaf.line, leaf.value));
                }
            }
        }
        let (key, line, value) = found.clone()?;
        self.told.push(Told { kind: self.kind, key, value: value.to_string(), line });
        found
    }

    fn bad(&mut self, key: String, line: Option<u64>, what: String) {
        self.bad.push(BadValue { kind: self.kind, key, line, what });
    }

    /// A word, with what it refers to in its place.
    pub(crate) fn word(&mut self, keys: &[&str]) -> Option<String> {
        let (key, line, value) = self.take(keys)?;
        match value {
            Value::Plain(text) => match self.document.resolve(text) {
                Ok(text) => return Some(text),
                Err(what) => self.bad(key, line, what),
            },
            other => self.bad(key, line, format!("{other} is no plain value")),
        }
        None
    }

    /// A whole number. `auto` is none.
    pub(crate) fn number(&mut self, keys: &[&str]) -> Option<u64> {
        /// Whole numbers that a floating-point number holds exactly.
        const MOST: f64 = 9e15;
        let text = self.word(keys)?;
        if text == "auto" {
            return None;
        }
        let plain = text.replace('_', "");
        let number = plain.parse::<u64>().ok();
        let number = number.or_else(|| {
            plain.parse::<f64>().ok().filter(|n| n.fract() == 0.0 && (0.0..MOST).contains(n)).map(|n| n as u64)
        });
        if number.is_none() {
            self.refuse_last(&format!("`{}` is no whole number", cut(&text)));
        }
        number
    }

    /// A whole number above zero.
    pub(crate) fn count(&mut self, keys: &[&str]) -> Option<u64> {
        let number = self.number(keys)?;
        if number == 0 {
            self.refuse_last("it must be at least 1");
        }
        Some(number).filter(|number| *number > 0)
    }

    /// A number, or infinity, as a limit that nothing reaches. `auto` is none.
    pub(crate) fn real(&mut self, keys: &[&str]) -> Option<f64> {
        let text = self.word(keys)?;
        let number = text.parse::<f64>().ok().filter(|number| !number.is_nan());
        if number.is_none() && text != "auto" {
            self.refuse_last(&format!("`{}` is no number", cut(&text)));
        }
        number
    }

    /// Yes or no, in the words of old and new YAML and of Python. `auto` is none.
    pub(crate) fn flag(&mut self, keys: &[&str]) -> Option<bool> {
        let text = self.word(keys)?;
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" | "y" => Some(true),
            "false" | "no" | "off" | "0" | "n" | "none" | "" => Some(false),
            "auto" => None,
            _ => {
                self.refuse_last(&format!("`{}` is neither true nor false", cut(&text)));
                None
            }
        }
    }

    /// Words, of a list or with commas or spaces between them.
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
                    self.bad(key, line, format!("{value} has something else than words"));
                }
                words
            }
            other => {
                self.bad(key, line, format!("{other} is no list"));
                None
            }
        }
    }

    /// Says what is wrong with the key that was read last.
    pub(crate) fn refuse_last(&mut self, what: &str) {
        if let Some(Told { key, line, .. }) = self.told.last().cloned() {
            self.bad(key, line, what.to_owned());
        }
    }

    /// Says that the key that was read last matters, how it is counted, and what that leaves open.
    pub(crate) fn note_last(&mut self, effect: Effect, why: &str) {
        if let Some(Told { key, line, .. }) = self.told.last().cloned() {
            self.unmodelled.push(Unmodelled { kind: self.kind, key, line, effect, why: why.to_owned() });
        }
    }

    /// Says the same of a key that was read before.
    pub(crate) fn note_of(&mut self, key: &str, effect: Effect, why: &str) {
        if let Some(Told { key, line, .. }) = self.told.iter().find(|told| told.key == key).cloned() {
            self.unmodelled.push(Unmodelled { kind: self.kind, key, line, effect, why: why.to_owned() });
        }
    }

    /// Says what is assumed where no key says it, and what that leaves open.
    pub(crate) fn assume(&mut self, effect: Effect, what: impl Into<String>) {
        self.assumed.push(what.into());
        self.assumed_effects.push(effect);
    }

    /// What all settings that are not modeled exactly leave open.
    pub(crate) fn unsure(&self) -> Unsure {
        let mut unsure = Unsure::default();
        let effects = self.unmodelled.iter().map(|key| key.effect).chain(self.assumed_effects.iter().copied());
        effects.for_each(|effect| unsure.add(effect));
        unsure
    }

    /// Says of keys that ask for something, patterns among them, that they are not modeled, and what that leaves open.
    pub(crate) fn cannot(&mut self, keys: &[&str], effect: Effect, why: &str) {
        self.asked.extend(keys.iter().filter(|key| !key.ends_with('*')).map(|key| (*key).to_owned()));
        for leaf in self.leaves.iter_mut().filter(|leaf| !leaf.used && keys.iter().any(|key| fits(key, &leaf.path))) {
            leaf.used = true;
            if is_wanted(leaf.value) {
                let (key, line, why) = (leaf.path.clone(), leaf.line, why.to_owned());
                self.unmodelled.push(Unmodelled { kind: self.kind, key, line, effect, why });
            }
        }
    }

    /// Takes out the keys, patterns among them, on which no memory of a card depends.
    pub(crate) fn nothing(&mut self, keys: &[&str]) {
        for leaf in &mut self.leaves {
            leaf.used |= keys.iter().any(|key| fits(key, &leaf.path));
        }
    }

    /// What nobody asked for, with the known key that is spelled most like it. What asks for nothing may be a key of another
    /// version of the trainer, and is not told.
    pub(crate) fn unknown(&self) -> Vec<Unknown> {
        let unknown = self.leaves.iter().filter(|leaf| !leaf.used && is_wanted(leaf.value));
        let told = unknown.enumerate().map(|(at, leaf)| {
            let near = (at < NEAR_MAX).then(|| self.near(&leaf.path)).flatten();
            Unknown { kind: self.kind, key: leaf.path.clone(), line: leaf.line, near }
        });
        told.collect()
    }

    fn near(&self, key: &str) -> Option<String> {
        spelling::nearest(key, self.asked.iter().map(String::as_str)).map(str::to_owned)
    }
}

/// Whether a key is meant by another, or begins like one with a `*` behind it.
fn fits(pattern: &str, key: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => key.starts_with(beginning),
        None => pattern == key,
    }
}

/// Whether a value asks for something.
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
                leaves.push(Leaf { path, line, value, used: false });
            }
        }
    }
}
