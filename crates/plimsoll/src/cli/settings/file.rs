//! A file of settings in Plimsoll's words: its settings, its keys that change nothing, and its problems, all with their
//! lines.
//! Not here: which of two exclusive settings applies (`settle.rs`), and how problems are written (`problems.rs`).

use super::data::{self, files_of};
use super::flags;
use super::problems::{PROBLEMS_MAX, Problem};
use super::suggest::suggestion;
use crate::cli::Failure;
use crate::cli::words::{self, Meant, Refusal, is_unwanted, meant, planned_without, sentence};
use plimsoll_graph::optimizers::Rule;
use plimsoll_trainers::document::{Document, Entry, Value, cut};
use plimsoll_trainers::notebook;
use plimsoll_trainers::words::{Assignment, Meaning, Setting, has_parts, meaning};
use std::collections::BTreeSet;
use std::path::Path;

/// A setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Set {
    pub(super) flag: String,
    pub(super) values: Vec<String>,
    /// The key as written, with its position.
    pub(super) key: String,
    pub(super) line: u64,
    /// The setting is not used if one of these is set elsewhere.
    pub(super) gives_way_to: Vec<&'static str>,
}

/// The contents of a file.
#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) sets: Vec<Set>,
    /// Keys that change nothing, with the reason.
    pub(super) ignored: Vec<(String, &'static str)>,
    /// Keys whose request is replaced by something else, with the replacement.
    pub(super) instead: Vec<(String, &'static str)>,
    /// Keys that the command's result does not depend on, or that it ignores, with the reason.
    pub(super) unused: Vec<(String, &'static str)>,
    pub(super) problems: Vec<Problem>,
    /// All keys, with underscores.
    written: Vec<String>,
}

/// Why a computed argument of a notebook changes nothing.
const COMPUTED: &str = "the notebook computes it, and its code is not run";

/// Settings for reading and writing files; only a command that starts a run checks them.
const OF_STARTS: &[&str] = &[
    "cache_dir",
    "chat_date",
    "chat_template",
    "data",
    "data_format",
    "log_project",
    "log_to",
    "name",
    "notify",
    "runs_dir",
    "secrets",
    "text_field",
    "train_on",
];

/// Why these keys are not used if the command starts no run.
const NOT_STARTED: &str = "only `plimsoll train` reads data and writes results";

/// Why an unknown key is not used if the command starts no run.
const UNKNOWN: &str = "not a known setting, so it is ignored here; `plimsoll train` refuses it";

/// Why a key within another trainer's adapter settings changes nothing if the file asks for no adapters.
const NO_ADAPTERS_ASKED: &str = "the file asks for no adapters";

impl File {
    /// Reads a file. `starts`: whether the command starts a run, which needs its weights.
    /// Errors: it is not a file of settings. Problems with its keys are in `problems`.
    pub(super) fn parse(text: &str, starts: bool) -> Result<Self, Failure> {
        Document::parse(text).map_err(Failure::bad_flag).map(|document| Self::of(&document, starts))
    }

    /// Reads the settings of a notebook. Errors: it is not a notebook.
    pub(super) fn of_notebook(text: &str, starts: bool) -> Result<Self, Failure> {
        let document = notebook::parse(text).map_err(Failure::bad_flag)?;
        let mut file = Self::of(&document, starts);
        let is_data = |problem: &Problem| problem.gives_way_to.contains(&"data");
        if starts && !file.sets.iter().any(|set| set.flag == "data") && !file.problems.iter().any(is_data) {
            // The notebook's code produces its data, and is not executed.
            let (what, hint) = ("it names no data file".to_owned(), Some(data::HINT.to_owned()));
            file.problems.push(Problem { line: 1, what, hint, gives_way_to: vec!["data"] });
        }
        Ok(file)
    }

    fn of(document: &Document, starts: bool) -> Self {
        let trains_all = trains_all_weights(&document.0);
        let mut reader = Reader { document, known: flags(), starts, trains_all, file: Self::default() };
        reader.read("", &document.0);
        let mut file = reader.file;
        if !starts {
            file.leave_out_of_starts();
        }
        file.settle();
        let (written, flags) = (file.written.iter().map(String::as_str), file.sets.iter().map(|set| set.flag.as_str()));
        if words::is_one_micro_batch(written, flags) {
            let (flag, value) = words::ONE_MICRO_BATCH;
            let (flag, values, key) = (flag.to_owned(), vec![value.to_owned()], "a micro-batch alone".to_owned());
            file.sets.push(Set { flag, values, key, line: 0, gives_way_to: vec![] });
        }
        file
    }
}

impl File {
    /// Removes the settings that only a started run depends on. Keys with Plimsoll's own names belong to any run, and
    /// are not listed.
    fn leave_out_of_starts(&mut self) {
        let builtin = |set: &Set| set.values.iter().any(|name| ["bytes", "gpt2"].contains(&name.as_str()));
        let is_absent = |set: &Set| set.flag == "tokenizer" && !builtin(set) && !Path::new(&set.values[0]).exists();
        let is_unused = |set: &Set| OF_STARTS.contains(&set.flag.as_str()) || is_absent(set);
        let (unused, used) = self.sets.drain(..).partition(is_unused);
        self.sets = used;
        let unused: Vec<Set> = unused;
        self.unused.extend(unused.into_iter().filter(|set| set.key != set.flag).map(|set| (set.key, NOT_STARTED)));
        let mut listed = BTreeSet::new();
        self.unused.retain(|entry| listed.insert(entry.clone()));
    }
}

/// Whether a file says explicitly that no adapters are trained; it may still contain keys for them.
fn trains_all_weights(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| match (entry.key.as_str(), &entry.value) {
        ("adapter", Value::Null) => true,
        ("adapter", Value::Plain(text)) => is_unwanted(text),
        ("finetuning_type", Value::Plain(text)) => text == "full",
        ("full_finetuning", Value::Plain(text)) => text == "true",
        _ => false,
    })
}

/// Whether a setting describes adapters.
fn is_of_adapters(flag: &str) -> bool {
    flag.starts_with("lora_") || ["rslora", "dora"].contains(&flag)
}

/// Whether a word's values choose layers for adapters.
fn chooses_targets(choices: &[(&str, &[Assignment])]) -> bool {
    choices.iter().flat_map(|(_, settings)| settings.iter()).any(|(setting, _)| is_of_adapters(words::name(*setting)))
}

struct Reader<'d> {
    document: &'d Document,
    /// The flags of `train`, with underscores.
    known: Vec<String>,
    starts: bool,
    trains_all: bool,
    file: File,
}

impl Reader<'_> {
    /// `within`: the keys around these entries, each with a dot after it.
    fn read(&mut self, within: &str, entries: &[Entry]) {
        for entry in entries {
            let shown = format!("{within}{}", entry.key);
            let word = shown.replace('-', "_");
            match &entry.value {
                Value::Map(inner) if has_parts(&word) && !inner.is_empty() => {
                    self.read(&format!("{word}."), inner);
                    continue;
                }
                Value::List(items) if has_parts(&word) && items.iter().any(|i| matches!(i.value, Value::Map(_))) => {
                    for item in items {
                        match &item.value {
                            Value::Map(inner) => self.read(&format!("{word}."), inner),
                            other => {
                                self.problem(item.line, format!("`{shown}: [{other}]` is not supported"), None, &[])
                            }
                        }
                    }
                    continue;
                }
                Value::Code => {
                    self.file.ignored.push((shown, COMPUTED));
                    continue;
                }
                _ => {}
            }
            self.file.written.push(word.clone());
            if self.known.contains(&word) {
                self.own(&word, &shown, entry);
            } else if let Some(meaning) = meaning(&word) {
                self.word(meaning, &shown, entry);
            } else {
                self.unknown(&word, &shown, entry);
            }
        }
    }

    /// A setting with Plimsoll's own name; some have other values in other trainers.
    fn own(&mut self, flag: &str, shown: &str, entry: &Entry) {
        match (flag, &entry.value) {
            // axolotl uses Hugging Face's names of optimizers.
            ("optimizer", Value::Plain(name)) if Rule::named(name).is_none() => {
                self.word(Meaning::Optimizer, shown, entry);
            }
            // The trainers' value for no limit.
            ("max_steps", Value::Plain(steps)) if steps == "-1" => {}
            ("vram_auto" | "resume", Value::Plain(value)) if value == "false" => {}
            (flag, value) if self.trains_all && is_of_adapters(flag) => {
                self.ignore(shown, &value.to_string(), NO_ADAPTERS_ASKED);
            }
            ("resume", Value::Plain(value)) if value == "true" => self.set("resume", vec!["auto".into()], shown, entry),
            _ => self.name(flag, shown, entry),
        }
    }

    fn word(&mut self, meaning: Meaning, shown: &str, entry: &Entry) {
        let value = match &entry.value {
            // Some words have a meaning for no value.
            Value::Null if matches!(meaning, Meaning::Or(..)) => "null".to_owned(),
            Value::Null => return,
            Value::Plain(text) => match self.document.resolve(text) {
                Ok(text) => text,
                Err(_) if matches!(meaning, Meaning::Nothing(_)) => text.clone(),
                Err(what) => return self.problem(entry.line, format!("`{shown}: {text}`: {what}"), None, &[]),
            },
            list_or_map => list_or_map.to_string(),
        };
        match (meaning, &entry.value) {
            (Meaning::Data, _) if !self.starts => self.unused(shown, NOT_STARTED),
            (Meaning::Data, _) => self.data(shown, entry),
            (Meaning::Only(..) | Meaning::Instead(..) | Meaning::Supported(..), Value::List(items)) => {
                for item in items {
                    let text = match &item.value {
                        // The whole text, since `value` is shortened.
                        Value::Plain(text) => text.clone(),
                        other => other.to_string(),
                    };
                    match meant(meaning, &text, self.starts) {
                        Ok(meant) => self.meant(meaning, meant, shown, &text, entry),
                        Err(refusal) => self.refuse(shown, &text, refusal, entry.line),
                    }
                }
            }
            (Meaning::Instead(..), Value::Map(_)) => match meant(meaning, &value, self.starts) {
                Ok(meant) => self.meant(meaning, meant, shown, &value, entry),
                Err(refusal) => self.refuse(shown, &value, refusal, entry.line),
            },
            (Meaning::Betas, Value::List(betas)) if betas.len() == 2 => {
                for (flag, beta) in ["beta1", "beta2"].into_iter().zip(betas) {
                    self.set(flag, vec![beta.value.to_string()], shown, entry);
                }
            }
            (Meaning::Adapter, _) if self.trains_all => self.ignore(shown, &value, NO_ADAPTERS_ASKED),
            (Meaning::Name(setting) | Meaning::Or(setting, _), _)
                if self.trains_all && is_of_adapters(words::name(setting)) =>
            {
                self.ignore(shown, &value, NO_ADAPTERS_ASKED);
            }
            (Meaning::Choice(choices), _) if self.trains_all && chooses_targets(choices) => {
                self.ignore(shown, &value, NO_ADAPTERS_ASKED);
            }
            (Meaning::Or(setting, _), Value::List(_)) => self.name(words::name(setting), shown, entry),
            (Meaning::Name(Setting::Resume), _) if value == "true" => {
                self.set("resume", vec!["auto".into()], shown, entry)
            }
            (Meaning::Name(Setting::Resume), _) if value == "false" => {}
            (Meaning::Name(setting), _) => self.name(words::name(setting), shown, entry),
            (Meaning::Nothing(why), _) => self.ignore(shown, &value, sentence(why)),
            (Meaning::Missing(_) | Meaning::Adapter, _) | (_, Value::Plain(_) | Value::Null) => {
                match meant(meaning, &value, self.starts) {
                    Ok(meant) => self.meant(meaning, meant, shown, &value, entry),
                    Err(refusal) => self.refuse(shown, &entry.value.to_string(), refusal, entry.line),
                }
            }
            _ => self.not_plain(shown, entry),
        }
    }

    fn meant(&mut self, meaning: Meaning, meant: Meant, shown: &str, value: &str, entry: &Entry) {
        match meant {
            Meant::Settings(settings) => {
                let gives_way = matches!(meaning, Meaning::Weights | Meaning::Folder | Meaning::Model);
                let gives_way: &[&str] = if gives_way { &["model", "init"] } else { &[] };
                for (flag, value) in settings {
                    self.set(flag, vec![value], shown, entry);
                    let set = self.file.sets.last_mut().expect("it was just put there");
                    set.gives_way_to.extend(gives_way);
                }
            }
            Meant::Nothing(why) => self.ignore(shown, value, sentence(why)),
            Meant::Instead(what) => {
                let said = (shown.to_owned(), sentence(what));
                if !self.file.instead.contains(&said) {
                    self.file.instead.push(said);
                }
            }
        }
    }

    /// A value that is not supported; a plan may ignore it.
    fn refuse(&mut self, shown: &str, value: &str, refusal: Refusal, line: u64) {
        let left_out = refusal.instead.and_then(planned_without).filter(|_| !self.starts);
        match left_out {
            Some(why) => self.unused(shown, why),
            None => {
                let hint = refusal.instead.map(|instead| sentence(instead).to_owned());
                self.problem(line, format!("`{shown}: {value}` {}", refusal.what), hint, &[]);
            }
        }
    }

    fn unused(&mut self, shown: &str, why: &'static str) {
        self.file.unused.push((shown.to_owned(), why));
    }

    /// The setting of this name with the entry's own values.
    fn name(&mut self, flag: &str, shown: &str, entry: &Entry) {
        let plain = |value: &Value| match value {
            Value::Plain(text) => Some(self.document.resolve(text)),
            _ => None,
        };
        let values = match &entry.value {
            Value::Null => return,
            Value::List(items) => {
                items.iter().filter(|i| !matches!(i.value, Value::Null)).map(|i| plain(&i.value)).collect()
            }
            single => plain(single).map(|value| vec![value]),
        };
        let values: Option<Vec<Result<String, String>>> = values;
        match values.map(|values| values.into_iter().collect::<Result<Vec<_>, _>>()) {
            None => self.not_plain(shown, entry),
            Some(Err(what)) => self.problem(entry.line, format!("`{shown}: {}`: {what}", entry.value), None, &[]),
            Some(Ok(values)) => self.set(flag, values, shown, entry),
        }
    }

    /// Files to train on, if they are on this machine.
    fn data(&mut self, shown: &str, entry: &Entry) {
        match files_of(self.document, shown, &entry.value) {
            Ok(paths) => self.set("data", paths, shown, entry),
            Err((what, hint)) => self.problem(entry.line, what, Some(hint), &["data"]),
        }
    }

    fn set(&mut self, flag: &str, values: Vec<String>, shown: &str, entry: &Entry) {
        if !values.is_empty() {
            let (flag, key) = (flag.to_owned(), shown.to_owned());
            self.file.sets.push(Set { flag, values, key, line: entry.line, gives_way_to: vec![] });
        }
    }

    /// A key that changes nothing; it is not reported if its value disables it.
    fn ignore(&mut self, shown: &str, value: &str, why: &'static str) {
        let said = (shown.to_owned(), why);
        if !is_unwanted(value) && !self.file.ignored.contains(&said) {
            self.file.ignored.push(said);
        }
    }

    /// An unknown key. With an empty value it belongs to another version of a trainer, and is not a mistake.
    fn unknown(&mut self, word: &str, shown: &str, entry: &Entry) {
        let is_nothing = match &entry.value {
            Value::Null | Value::Code => true,
            Value::Plain(text) => ["false", ""].contains(&text.as_str()),
            Value::List(items) => items.is_empty(),
            Value::Map(entries) => entries.is_empty(),
        };
        if is_nothing {
            return;
        }
        let is_shown = self.file.problems.len() < PROBLEMS_MAX;
        let hint = is_shown.then(|| suggestion(word, &self.known)).flatten();
        if hint.is_none() && !self.starts {
            return self.unused(shown, UNKNOWN);
        }
        let hint = hint.map(|near| format!("did you mean `{near}`?"));
        self.problem(entry.line, format!("unknown setting `{}`", cut(shown)), hint, &[]);
    }

    fn not_plain(&mut self, shown: &str, entry: &Entry) {
        self.problem(entry.line, format!("`{shown}` must be a plain value, not {}", entry.value), None, &[]);
    }

    fn problem(&mut self, line: u64, what: String, hint: Option<String>, gives_way_to: &[&'static str]) {
        self.file.problems.push(Problem { line, what, hint, gives_way_to: gives_way_to.to_vec() });
    }
}
