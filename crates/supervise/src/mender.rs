//! The repair that answers want of memory with the next step of the ladder, resumes, and remembers what helped.
//! Not here: what an end means (`ends/`), the steps (`ladder/`), processes and limits on restarts (the supervisor's).

use crate::ends::{Cause, Fault, Reason, classify};
use crate::failures::{Failures, Outcome, Start, Subject};
use crate::ladder::{Configuration, Ladder, Taken, resumed};
use crate::repair::{Attempt, Decision, Ending, Repair, Verdict};
use plimsoll_files::Disk;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

/// What shells say of a command that can't be started.
const NOT_STARTED: [i32; 2] = [126, 127];

/// Repairs one worker's run.
#[derive(Debug)]
pub struct Mender {
    ladder: Ladder,
    /// The command as it was given.
    given: Configuration,
    /// Steps so far.
    taken: Vec<Taken>,
    /// Steps that the program did not take, by name.
    refused: BTreeSet<String>,
    /// Whether the last step is new, so that an end for another reason may be its fault.
    is_unproven: bool,
    /// Whether memory was short in this run, or in one before.
    has_failed: bool,
    memory: Option<(Failures, Subject)>,
    disk: Disk,
    folder: PathBuf,
    attempts: u32,
    /// What is to be said with the next attempt.
    notes: Vec<String>,
}

impl Mender {
    /// For a command. Copies of files are put in `folder`, which is made if one is.
    pub fn new(argv: &[OsString], ladder: Ladder, folder: PathBuf) -> Self {
        Self {
            ladder,
            given: Configuration::new(argv),
            taken: Vec::new(),
            refused: BTreeSet::new(),
            is_unproven: false,
            has_failed: false,
            memory: None,
            disk: Disk::default(),
            folder,
            attempts: 0,
            notes: Vec::new(),
        }
    }

    /// Remembers by this file, for runs on this card: its name and memory.
    #[must_use]
    pub fn remembering(mut self, failures: Failures, card: &str) -> Self {
        let read = self.given.read();
        let model = read.as_ref().and_then(|read| read.model.clone()).unwrap_or_default();
        // A form that changes from one version to the next makes old entries forgotten, and no more.
        let settings = match &read {
            Some(read) => format!("{:?}", read.run),
            None => self.given.argv.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "),
        };
        self.memory = Some((failures, Subject { card: card.to_owned(), model, settings }));
        self
    }

    fn configuration(&self) -> &Configuration {
        self.taken.last().map_or(&self.given, |taken| &taken.configuration)
    }

    fn names(&self) -> Vec<String> {
        self.taken.iter().map(|taken| taken.name.clone()).collect()
    }

    /// Begins where the last run of the same kind came to.
    fn recall(&mut self) {
        let Some((failures, subject)) = &self.memory else { return };
        let path = failures.path().display().to_string();
        let (start, problem) = failures.start(subject);
        self.notes.extend(problem.map(|what| format!("{path} is damaged, and begun anew: {what}")));
        let (steps, failed) = match start {
            Start::AsGiven => return,
            Start::At(steps) => (steps, false),
            Start::Beyond(steps) => (steps, true),
        };
        self.has_failed = true;
        for name in &steps {
            match self.ladder.again(name, self.configuration()) {
                Some(taken) => self.taken.push(taken),
                None => break,
            }
        }
        if failed && let Ok(next) = self.next_step(&Cause::CardMemory { by: crate::ends::CardAllocator::PyTorch, told: Default::default() }) {
            self.taken.push(next);
        }
        if !self.taken.is_empty() {
            let did = if failed { "failed the last time, so it begins one step further" } else { "worked the last time" };
            self.notes.push(format!("begins with what is known of this card, model and settings: {did} ({path})"));
        }
    }

    fn next_step(&self, cause: &Cause) -> Result<Taken, String> {
        self.ladder.next(self.configuration(), cause, &self.names(), &self.refused)
    }

    /// Writes files, and says what is started.
    fn attempt(&mut self, resumes: bool) -> io::Result<Attempt> {
        self.attempts += 1;
        let mut notes: Vec<String> = self.taken.iter().flat_map(|taken| taken.notes.clone()).collect();
        notes.append(&mut self.notes);
        let mut configuration = self.configuration().clone();
        if resumes && !self.refused.contains(RESUMING) {
            let resumed = resumed(&configuration);
            configuration = resumed.configuration;
            notes.push(resumed.note);
        }
        let argv = configuration.write(&self.disk, &self.folder.join(format!("attempt-{}", self.attempts)))?;
        let env = configuration.env.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        Ok(Attempt { argv, env, notes })
    }

    fn again(&mut self, why: String) -> Decision {
        match self.attempt(true) {
            Ok(attempt) => Decision::Again { attempt, why },
            Err(error) => Decision::Stop { why: format!("{why}, but files can't be written: {error}") },
        }
    }

    fn remember(&mut self, outcome: Outcome) {
        let names = self.names();
        let Some((failures, subject)) = &self.memory else { return };
        if let Err(error) = failures.remember(subject, &names, outcome) {
            self.notes.push(format!("{}: what happened is not remembered: {error}", failures.path().display()));
        }
    }

    fn after_memory(&mut self, reason: &Reason) -> Decision {
        self.has_failed = true;
        self.remember(Outcome::Failed(reason.cause.kind().to_owned()));
        match self.next_step(&reason.cause) {
            Ok(taken) => {
                let why = format!("{}: {}", words(&reason.cause), taken.notes.join(", "));
                self.taken.push(taken);
                self.is_unproven = true;
                self.again(why)
            }
            Err(none) => Decision::Stop { why: format!("{}: {none}", words(&reason.cause)) },
        }
    }

    /// The program did not take the last step: an unknown flag, a module that is not there. It is undone, and the next one
    /// is taken, for the want of memory that it was to answer.
    fn after_refusal(&mut self, reason: &Reason) -> Decision {
        self.is_unproven = false;
        let said = reason.line.as_deref().unwrap_or("no word");
        let mentions = |key: &str| said.replace('-', "_").contains(key);
        if mentions(RESUMING) {
            self.refused.insert(RESUMING.to_owned());
            return self.again(format!("the program does not know `{RESUMING}`: {said}"));
        }
        let Some(taken) = self.taken.pop() else { return Decision::Stop { why: said.to_owned() } };
        self.refused.insert(taken.name.clone());
        let why = format!("the program did not take the step `{}` ({said}), which is undone", taken.name);
        let cause = Cause::CardMemory { by: crate::ends::CardAllocator::PyTorch, told: Default::default() };
        match self.next_step(&cause) {
            Ok(next) => {
                let why = format!("{why}; instead: {}", next.notes.join(", "));
                self.taken.push(next);
                self.is_unproven = true;
                self.again(why)
            }
            Err(none) => Decision::Stop { why: format!("{why}; {none}") },
        }
    }
}

/// The key by which trainers are told to resume.
const RESUMING: &str = "resume_from_checkpoint";
