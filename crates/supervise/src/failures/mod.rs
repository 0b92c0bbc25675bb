//! Remembers which steps failed and which worked, by card, model and settings, in a small file in the user's state
//! folder that all runs share. Not here: the steps (`../ladder`).
//! The file is re-read under a lock before each write, so that concurrent runs do not lose each other's entries.

use plimsoll_files::{read_if_there, update};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// Version of the file format.
const VERSION: u32 = 1;
/// Limit on entries. The oldest are removed first.
const MOST_ENTRIES: usize = 500;
const LONGEST_FILE: Bytes = Bytes::mib(4);

/// The key of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// The card's name and memory.
    pub card: String,
    /// The model, as in the trainer's settings.
    pub model: String,
    /// The user's settings that affect memory, before any repair.
    pub settings: String,
}

/// The outcome of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It trained.
    Worked,
    /// It ran out of memory. The kind of end.
    Failed(String),
}

/// The steps to start with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// None: the file has no entry.
    AsGiven,
    /// These steps worked last time.
    At(Vec<String>),
    /// These steps failed last time, so take one more.
    Beyond(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    subject: Subject,
    /// The steps of the ladder, in order.
    steps: Vec<String>,
    outcome: Outcome,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Contents {
    v: u32,
    entries: Vec<Entry>,
}

/// The file of remembered outcomes.
#[derive(Debug, Clone)]
pub struct Failures {
    path: PathBuf,
}

impl Failures {
    /// The file at a path. It need not exist.
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The steps to start with, and an error if the file is damaged; then its entries are ignored.
    pub fn start(&self, subject: &Subject) -> (Start, Option<String>) {
        match self.read() {
            Ok(entries) => (start(&entries, subject), None),
            Err(problem) => (Start::AsGiven, Some(problem)),
        }
    }

    /// Records an outcome and replaces an earlier one of the same configuration. Replaces a damaged file.
    /// Errors: those of the system.
    pub fn remember(&self, subject: &Subject, steps: &[String], outcome: Outcome) -> io::Result<()> {
        update(&self.path, LONGEST_FILE, |text| {
            let mut entries = text.ok().and_then(|text| parse(text).ok()).unwrap_or_default();
            entries.retain(|entry| entry.subject != *subject || entry.steps != steps);
            entries.push(Entry { subject: subject.clone(), steps: steps.to_vec(), outcome });
            let surplus = entries.len().saturating_sub(MOST_ENTRIES);
            entries.drain(..surplus);
            serde_json::to_string_pretty(&Contents { v: VERSION, entries }).map_err(io::Error::other)
        })
    }

    fn read(&self) -> Result<Vec<Entry>, String> {
        parse(read_if_there(&self.path, LONGEST_FILE).map_err(|error| error.to_string())?)
    }
}

/// The entries of a file; `None`: there is no file.
fn parse(text: Option<String>) -> Result<Vec<Entry>, String> {
    let Some(text) = text else { return Ok(Vec::new()) };
    let contents: Contents = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    match contents.v {
        VERSION => Ok(contents.entries),
        other => Err(format!("it has version {other}, not {VERSION}")),
    }
}

fn start(entries: &[Entry], subject: &Subject) -> Start {
    let mut newest = entries.iter().rev().filter(|entry| entry.subject == *subject);
    match newest.next() {
        None => Start::AsGiven,
        Some(Entry { steps, outcome: Outcome::Worked, .. }) => Start::At(steps.clone()),
        Some(Entry { steps, outcome: Outcome::Failed(_), .. }) => Start::Beyond(steps.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    fn subject(model: &str) -> Subject {
        Subject { card: "RTX 3060, 12 GiB".into(), model: model.into(), settings: "micro-batch 8".into() }
    }

    fn steps(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn failed() -> Outcome {
        Outcome::Failed("card_memory".into())
    }

    #[test]
    fn the_newest_outcome_decides_the_start() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = Failures::at(folder.path().join("state/plimsoll/failures.json"));
        assert_eq!(file.start(&subject("a")), (Start::AsGiven, None));
        file.remember(&subject("a"), &[], failed()).expect("written");
        assert_eq!(file.start(&subject("a")).0, Start::Beyond(vec![]));
        file.remember(&subject("a"), &steps(&["x"]), Outcome::Worked).expect("written");
        file.remember(&subject("b"), &steps(&["x", "y"]), failed()).expect("written");
        assert_eq!(file.start(&subject("a")).0, Start::At(steps(&["x"])));
        assert_eq!(file.start(&subject("b")).0, Start::Beyond(steps(&["x", "y"])));
        file.remember(&subject("a"), &steps(&["x"]), failed()).expect("written");
        assert_eq!(file.start(&subject("a")).0, Start::Beyond(steps(&["x"])), "the newer outcome wins");
        assert_eq!(file.start(&subject("c")).0, Start::AsGiven);
    }

    #[test]
    fn a_damaged_file_is_reported_and_replaced() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = Failures::at(folder.path().join("failures.json"));
        for damaged in ["", "{\"v\":1,\"entries\":[{}]}", "{\"v\":9,\"entries\":[]}", "nonsense"] {
            fs::write(file.path(), damaged).expect("written");
            let (start, problem) = file.start(&subject("a"));
            assert!(start == Start::AsGiven && problem.is_some_and(|p| !p.is_empty()), "{damaged}");
        }
        file.remember(&subject("a"), &[], Outcome::Worked).expect("written");
        assert_eq!(file.start(&subject("a")), (Start::At(vec![]), None));
    }

    #[test]
    fn concurrent_runs_lose_no_entries_and_the_file_stays_small() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = Failures::at(folder.path().join("failures.json"));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let file = &file;
                scope.spawn(move || {
                    for i in 0..20 {
                        file.remember(&subject(&format!("{thread}-{i}")), &[], failed()).expect("written");
                    }
                });
            }
        });
        assert_eq!(file.read().expect("whole").len(), 80);
        let many = vec![Entry { subject: subject("old"), steps: vec![], outcome: failed() }; MOST_ENTRIES + 9];
        let text = serde_json::to_string(&Contents { v: VERSION, entries: many }).expect("plain data");
        fs::write(file.path(), text).expect("written");
        file.remember(&subject("new"), &[], failed()).expect("written");
        assert!(file.read().expect("whole").len() <= MOST_ENTRIES);
        assert_eq!(file.start(&subject("new")).0, Start::Beyond(vec![]));
    }

    proptest! {
        #[test]
        fn any_file_is_read_or_rejected(text in "(\\PC|[{}\\[\\]\":,v1])*") {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let file = Failures::at(folder.path().join("failures.json"));
            fs::write(file.path(), text).expect("written");
            prop_assert_eq!(file.start(&subject("a")).0, Start::AsGiven);
        }
    }
}
