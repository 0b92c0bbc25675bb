//! What failed and what worked before, by card, model and settings: a small file in the user's folder for state, shared by
//! all runs. Not here: what the names of steps do (`../ladder`).
//!
//! The file is read anew under a lock before it is written, so that runs side by side lose nothing of each other's.

use plimsoll_files::{open_own, read_text, sync_folder, write_whole};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Version of the file's form.
const VERSION: u32 = 1;
/// What is remembered at most; the oldest goes first.
const MOST_ENTRIES: usize = 500;
const LONGEST_FILE: Bytes = Bytes::mib(4);

/// What is remembered belongs to one of these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// The card by its name and memory, or the machine where there is none.
    pub card: String,
    /// The model, as the trainer is told.
    pub model: String,
    /// The settings as they were given, before any repair, as far as memory depends on them.
    pub settings: String,
}

/// How a configuration did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It trained.
    Worked,
    /// It ran out of memory; the kind of end.
    Failed(String),
}

/// Where to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// Nothing is known.
    AsGiven,
    /// With these steps it worked the last time.
    At(Vec<String>),
    /// With these steps it failed the last time, so with one more.
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

/// The file.
#[derive(Debug, Clone)]
pub struct Failures {
    path: PathBuf,
}

impl Failures {
    /// The file at a path, whether it is there or not.
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where to begin, and what is wrong with the file if something is; then nothing of it is believed.
    pub fn start(&self, subject: &Subject) -> (Start, Option<String>) {
        match self.read() {
            Ok(entries) => (start(&entries, subject), None),
            Err(problem) => (Start::AsGiven, Some(problem)),
        }
    }

    /// Adds how a configuration did, in place of what was known of it. A damaged file is begun anew.
    /// Errors: what the system says.
    pub fn remember(&self, subject: &Subject, steps: &[String], outcome: Outcome) -> io::Result<()> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let lock = open_own(&self.path.with_extension("lock"))?;
        lock.lock()?;
        let mut entries = self.read().unwrap_or_default();
        entries.retain(|entry| entry.subject != *subject || entry.steps != steps);
        entries.push(Entry { subject: subject.clone(), steps: steps.to_vec(), outcome });
        let surplus = entries.len().saturating_sub(MOST_ENTRIES);
        entries.drain(..surplus);
        let text = serde_json::to_string_pretty(&Contents { v: VERSION, entries }).map_err(io::Error::other)?;
        write_whole(&self.path, text.as_bytes())?;
        sync_folder(folder)
    }

    fn read(&self) -> Result<Vec<Entry>, String> {
        let text = match read_text(&self.path, LONGEST_FILE) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error.to_string()),
        };
        let contents: Contents = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        match contents.v {
            VERSION => Ok(contents.entries),
            other => Err(format!("it is of version {other}, not {VERSION}")),
        }
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
    fn the_newest_word_on_a_subject_says_where_to_begin() {
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
        assert_eq!(file.start(&subject("a")).0, Start::Beyond(steps(&["x"])), "it worked before, and does no more");
        assert_eq!(file.start(&subject("c")).0, Start::AsGiven);
    }

    #[test]
    fn a_damaged_file_is_told_of_and_begun_anew() {
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
    fn runs_side_by_side_lose_nothing_and_the_file_stays_small() {
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
        fn any_file_is_read_or_refused(text in "(\\PC|[{}\\[\\]\":,v1])*") {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let file = Failures::at(folder.path().join("failures.json"));
            fs::write(file.path(), text).expect("written");
            prop_assert_eq!(file.start(&subject("a")).0, Start::AsGiven);
        }
    }
}
