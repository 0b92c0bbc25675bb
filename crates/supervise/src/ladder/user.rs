//! A user's ladder: a list of steps. Each step sets flags, environment variables and keys of files, on top of the
//! previous steps. Parses text into values. Not here: when a step is taken (`mod.rs`).
//!
//! ```yaml
//! steps:
//!   - name: half the batch
//!     flags:
//!       --batch-size: 4          # set or replaced, also in the form `--batch-size=8`
//!       --grad-accum: 4
//!       --compile: null          # removed
//!     env:
//!       PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True
//!     files:
//!       config.yaml:             # the path in the command; a copy is changed
//!         train.batch: 4
//! ```

use super::configuration::{ChangeError, Configuration};
use plimsoll_trainers::document::{Document, Entry, Value};
use std::ffi::OsString;

/// Names with values; `None` removes the name.
type Keys = Vec<(String, Option<String>)>;

/// The steps of a user's ladder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserLadder {
    steps: Vec<UserStep>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct UserStep {
    name: String,
    line: u64,
    flags: Keys,
    env: Keys,
    files: Vec<(String, Keys)>,
}

/// An error in a user's ladder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LadderError {
    /// It is not valid YAML.
    #[error("{0}")]
    Unreadable(String),
    /// Unknown keys, each with its line.
    #[error("unknown keys: {}", .0.iter().map(|(key, line)| format!("`{key}` (line {line})")).collect::<Vec<_>>().join(", "))]
    UnknownKeys(Vec<(String, u64)>),
    /// A value has the wrong type for its key.
    #[error("line {line}: `{key}` must be {expected}")]
    WrongForm {
        /// The key.
        key: String,
        /// From 1.
        line: u64,
        /// The expected type, with an article.
        expected: &'static str,
    },
    /// It has no steps.
    #[error("it has no steps")]
    Empty,
    /// A step changes nothing.
    #[error("line {line}: step `{name}` changes nothing")]
    ChangesNothing {
        /// The step.
        name: String,
        /// From 1.
        line: u64,
    },
    /// A step can't be applied.
    #[error("line {line}: step `{name}`: {what}")]
    Impossible {
        /// The step.
        name: String,
        /// From 1.
        line: u64,
        /// The reason.
        what: String,
    },
}

impl UserLadder {
    /// Parses a ladder. Errors: all of [`LadderError`] except `ChangesNothing` and `Impossible`, which depend on a
    /// command.
    pub fn parse(text: &str) -> Result<Self, LadderError> {
        let document = Document::parse(text).map_err(LadderError::Unreadable)?;
        let mut unknown = Vec::new();
        let mut steps = Vec::new();
        for entry in &document.0 {
            match (entry.key.as_str(), &entry.value) {
                ("steps", Value::List(items)) => {
                    for (number, item) in items.iter().enumerate() {
                        let Value::Map(entries) = &item.value else {
                            return Err(wrong(
                                "steps",
                                item.line,
                                "a list of steps, each with `flags`, `env` or `files`",
                            ));
                        };
                        steps.push(step(number + 1, item.line, entries, &mut unknown)?);
                    }
                }
                ("steps", _) => return Err(wrong("steps", entry.line, "a list")),
                _ => unknown.push((entry.key.clone(), entry.line)),
            }
        }
        match (unknown.is_empty(), steps.is_empty()) {
            (false, _) => Err(LadderError::UnknownKeys(unknown)),
            (true, true) => Err(LadderError::Empty),
            (true, false) => Ok(Self { steps }),
        }
    }

    /// The number of steps.
    pub(crate) fn len(&self) -> usize {
        self.steps.len()
    }

    /// The name of a step.
    pub(crate) fn name(&self, step: usize) -> &str {
        &self.steps[step].name
    }

    /// Applies a step to a configuration. Errors: `Impossible`, `ChangesNothing`.
    pub(crate) fn take(&self, step: usize, from: &Configuration) -> Result<Configuration, LadderError> {
        let step = &self.steps[step];
        let (name, line) = (step.name.clone(), step.line);
        match step.take(from) {
            Ok(to) if to == *from => Err(LadderError::ChangesNothing { name, line }),
            Ok(to) => Ok(to),
            Err(what) => Err(LadderError::Impossible { name, line, what }),
        }
    }
}

fn wrong(key: &str, line: u64, expected: &'static str) -> LadderError {
    LadderError::WrongForm { key: key.to_owned(), line, expected }
}

fn step(
    number: usize,
    line: u64,
    entries: &[Entry],
    unknown: &mut Vec<(String, u64)>,
) -> Result<UserStep, LadderError> {
    let mut step = UserStep { name: format!("step {number}"), line, ..UserStep::default() };
    for entry in entries {
        match entry.key.as_str() {
            "name" => step.name = plain(entry)?.unwrap_or_default(),
            "flags" => step.flags = pairs(entry)?,
            "env" => step.env = pairs(entry)?,
            "files" => {
                step.files =
                    map(entry)?.iter().map(|file| Ok((file.key.clone(), pairs(file)?))).collect::<Result<_, _>>()?
            }
            _ => unknown.push((entry.key.clone(), entry.line)),
        }
    }
    Ok(step)
}

fn map(entry: &Entry) -> Result<&[Entry], LadderError> {
    match &entry.value {
        Value::Map(entries) => Ok(entries),
        _ => Err(wrong(&entry.key, entry.line, "keys with values")),
    }
}

fn pairs(entry: &Entry) -> Result<Keys, LadderError> {
    map(entry)?.iter().map(|entry| Ok((entry.key.clone(), plain(entry)?))).collect()
}

fn plain(entry: &Entry) -> Result<Option<String>, LadderError> {
    match &entry.value {
        Value::Plain(text) => Ok(Some(text.clone())),
        Value::Null => Ok(None),
        Value::List(_) | Value::Map(_) | Value::Code => Err(wrong(&entry.key, entry.line, "one value")),
    }
}

impl UserStep {
    fn take(&self, from: &Configuration) -> Result<Configuration, String> {
        let mut to = from.clone();
        for (flag, value) in &self.flags {
            set_flag(&mut to.argv, flag, value.as_deref());
        }
        for (name, value) in &self.env {
            // Trainers treat an empty variable like an unset one.
            to.env.insert(name.clone(), value.clone().unwrap_or_default());
        }
        for (path, keys) in &self.files {
            let names = |word: &OsString| word.to_str().is_some_and(|w| w == path || w.ends_with(&format!("={path}")));
            if !from.argv.iter().any(names) {
                return Err(format!("the command does not name {path}"));
            }
            to = to.set_file_keys(path, keys).map_err(|error: ChangeError| error.to_string())?;
        }
        Ok(to)
    }
}

/// Sets a flag in its existing form: `--flag value`, `--flag=value`, or `--flag` alone for `true`. A name without
/// hyphens has the form `name=value`. Appends a flag that is absent.
pub(super) fn set_flag(argv: &mut Vec<OsString>, flag: &str, value: Option<&str>) {
    let joined = format!("{flag}=");
    let starts = |word: &OsString| word.to_str().is_some_and(|word| word.starts_with(&joined));
    let is_assigned = !flag.starts_with('-');
    // The program itself is not a flag. The last duplicate wins.
    let alone = argv.iter().rposition(|word| word == flag).filter(|at| *at > 0 && !is_assigned);
    let inline = argv.iter().rposition(starts).filter(|at| *at > 0);
    match (inline.max(alone), inline >= alone && inline.is_some()) {
        (Some(at), true) => drop(argv.splice(at..=at, value.map(|value| format!("{joined}{value}").into()))),
        (Some(at), false) => {
            let has_value = argv.get(at + 1).is_some_and(is_value);
            let words = written(flag, value, has_value);
            drop(argv.splice(at..=at + usize::from(has_value), words));
        }
        (None, _) if is_assigned => argv.extend(value.map(|value| format!("{joined}{value}").into())),
        (None, _) => argv.extend(written(flag, value, false)),
    }
}

fn written(flag: &str, value: Option<&str>, had_value: bool) -> Vec<OsString> {
    match value {
        None => vec![],
        Some("true") if !had_value => vec![flag.into()],
        Some(value) => vec![flag.into(), value.into()],
    }
}

/// Whether an argument is a flag's value. Negative numbers are values.
fn is_value(word: &OsString) -> bool {
    word.to_str().is_some_and(|word| !word.starts_with('-') || word.parse::<f64>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn set(line: &str, flag: &str, value: Option<&str>) -> String {
        let mut argv = words(line);
        set_flag(&mut argv, flag, value);
        argv.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn flags_keep_their_form() {
        for (line, flag, value, expected) in [
            ("t --b 8 --x", "--b", Some("4"), "t --b 4 --x"),
            ("t --b=8 --x", "--b", Some("4"), "t --b=4 --x"),
            ("t --b 8 --b 9", "--b", Some("4"), "t --b 8 --b 4"),
            ("t --x", "--b", Some("4"), "t --x --b 4"),
            ("t --x", "--b", Some("true"), "t --x --b"),
            ("t --b yes", "--b", Some("true"), "t --b true"),
            ("t --b 8 --x", "--b", None, "t --x"),
            ("t --b --x", "--b", None, "t --x"),
            ("t --b=8 --x", "--b", None, "t --x"),
            ("t --lr -1 --x", "--lr", Some("-2"), "t --lr -2 --x"),
            ("t b=8", "b", Some("4"), "t b=4"),
            ("t", "b", Some("4"), "t b=4"),
            ("t --x", "--b", None, "t --x"),
        ] {
            assert_eq!(set(line, flag, value), expected, "{line} with {flag} {value:?}");
        }
    }

    const LADDER: &str = "steps:\n  - name: smaller\n    flags:\n      --b: 4\n  - env:\n      A: b\n";

    #[test]
    fn steps_build_on_each_other() {
        let ladder = UserLadder::parse(LADDER).expect("a ladder");
        let first = ladder.take(0, &Configuration::new(&words("t --b 8"))).expect("a step");
        let second = ladder.take(1, &first).expect("a step");
        assert_eq!((second.argv, second.env["A"].as_str()), (words("t --b 4"), "b"));
        assert_eq!((ladder.len(), ladder.name(0), ladder.name(1)), (2, "smaller", "step 2"));
    }

    #[test]
    fn files_are_changed_in_copies() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("c.yaml");
        std::fs::write(&path, "train:\n  batch: 8\n").expect("written");
        let named = path.to_str().expect("text");
        let ladder = format!("steps:\n- files:\n    {named}:\n      train.batch: 4\n");
        let ladder = UserLadder::parse(&ladder).expect("a ladder");
        let from = Configuration::new(&words(&format!("t --config={named}")));
        let to = ladder.take(0, &from).expect("a step");
        let run = folder.path().join("run");
        let argv = to.write(&plimsoll_files::Disk::default(), &run).expect("written");
        let copy = argv[1].to_str().and_then(|word| word.strip_prefix("--config=")).expect("a copy");
        assert_eq!(std::fs::read_to_string(copy).expect("text"), "train:\n  batch: 4\n");
        assert_eq!(std::fs::read_to_string(&path).expect("text"), "train:\n  batch: 8\n", "the original");
        let error = ladder.take(0, &Configuration::new(&words("t"))).expect_err("no such file is named");
        assert!(error.to_string().contains("the command does not name"), "{error}");
    }

    #[test]
    fn errors_name_the_line() {
        for (text, message) in [
            ("steps: []", "it has no steps"),
            ("steps: 3", "line 1: `steps` must be a list"),
            ("steps:\n- 3", "line 2: `steps` must be a list of steps, each with `flags`, `env` or `files`"),
            (
                "step:\n- flags: {}\nsteps:\n- flag: {}\n  envs: {}",
                "unknown keys: `step` (line 1), `flag` (line 4), `envs` (line 5)",
            ),
            ("steps:\n- flags:\n    --b: [1]", "line 3: `--b` must be one value"),
            ("steps:\n- flags: 3", "line 2: `flags` must be keys with values"),
        ] {
            assert_eq!(UserLadder::parse(text).expect_err(text).to_string(), message);
        }
        assert!(matches!(UserLadder::parse("{"), Err(LadderError::Unreadable(_))));
        let same = UserLadder::parse("steps:\n- flags:\n    --b: 8\n").expect("a ladder");
        let error = same.take(0, &Configuration::new(&words("t --b 8"))).expect_err("nothing changes");
        assert_eq!(error.to_string(), "line 2: step `step 1` changes nothing");
    }

    proptest! {
        #[test]    fn any_text_is_parsed_or_rejected(text in "(steps:|- |flags: |env: |files: |--b: |\\{|\\}|\n|  |[a-z0-9]|\\PC){0,30}") {
            if let Ok(ladder) = UserLadder::parse(&text) {
                for step in 0..ladder.len() {
                    let _ = ladder.take(step, &Configuration::new(&words("t --b 8 -x")));
                }
            }
        }
    }
}
