//! The repair that answers want of memory with the next step of the ladder, resumes, and remembers what helped.
//! Not here: what an end means (`ends/`), the steps (`ladder/`), causes in words (`words.rs`), processes and limits on restarts (the supervisor's).

#[cfg(test)]
mod tests;
mod words;

use crate::ends::{Cause, Fault, Reason, classify};
use crate::failures::{Failures, Outcome, Start, Subject};
use crate::hopeless::never_begins;
use crate::ladder::{Configuration, Ladder, Taken, resumed};
use crate::repair::{Attempt, Decision, Ending, Past, Repair, Verdict};
use crate::{UNKNOWN, UNKNOWN_END};
use plimsoll_files::Disk;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use words::{cause, kind, may_refuse, unknown_shortage, words};

/// The key by which trainers are told to resume.
const RESUMING: &str = "resume_from_checkpoint";

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
    /// The last shortage of this run.
    shortage: Option<Cause>,
    memory: Option<(Failures, Subject)>,
    disk: Disk,
    folder: PathBuf,
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
            shortage: None,
            memory: None,
            disk: Disk::default(),
            folder,
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
        self.take_again(&steps);
        if failed && let Ok(next) = self.next_step(&unknown_shortage()) {
            self.taken.push(next);
        }
        if !self.taken.is_empty() {
            let did =
                if failed { "failed the last time, so it begins one step further" } else { "worked the last time" };
            self.notes.push(format!("begins with what is known of this card, model and settings: {did} ({path})"));
        }
    }

    /// Takes steps that were taken before, up to one that is none here.
    fn take_again(&mut self, steps: &[String]) {
        for name in steps {
            match self.ladder.again(name, self.configuration()) {
                Some(taken) => self.taken.push(taken),
                None => break,
            }
        }
    }

    fn next_step(&self, cause: &Cause) -> Result<Taken, String> {
        self.ladder.next(self.configuration(), cause, &self.names(), &self.refused)
    }

    /// Writes files, and says what is started. The same configuration is the same attempt, so that loops are noticed.
    fn attempt(&mut self, configuration: &Configuration) -> io::Result<Attempt> {
        let mut notes: Vec<String> = self.taken.iter().flat_map(|taken| taken.notes.clone()).collect();
        notes.append(&mut self.notes);
        let step = self.taken.len() + self.refused.len();
        let argv = configuration.write(&self.disk, &self.folder.join(format!("step-{step}")))?;
        let env = configuration.env.iter().map(|(name, value)| (name.into(), value.into())).collect();
        Ok(Attempt { argv, env, notes })
    }

    fn again(&mut self, why: &str) -> Decision {
        let (configuration, from) = match self.refused.contains(RESUMING) {
            true => (self.configuration().clone(), "it begins anew".to_owned()),
            false => {
                let resumed = resumed(self.configuration());
                (resumed.configuration, resumed.note)
            }
        };
        match self.attempt(&configuration) {
            Ok(attempt) => Decision::Again { attempt, why: format!("{why}; {from}") },
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

    /// Memory sufficed. Of a run that never lacked any there is nothing to remember.
    fn worked(&mut self) {
        if self.has_failed {
            self.remember(Outcome::Worked);
        }
    }

    /// Another attempt may help against what comes from outside, and not against what the command itself says.
    fn after_fault(&mut self, fault: &Fault, reason: &Reason) -> Decision {
        let said = reason.said();
        let hopeless = match fault {
            Fault::Interrupted => "it was interrupted",
            Fault::DiskFull => "the disk is full",
            Fault::NotANumber => "its loss is no number, and would be again",
            Fault::KernelLimits => "a kernel needs more than the card's chip has, whatever the batch",
            Fault::DeviceAssert => "an assertion failed on the card, and would again",
            Fault::IllegalAccess
            | Fault::Cuda
            | Fault::Communication
            | Fault::Configuration
            | Fault::Script
            | Fault::Import
            | Fault::Killed
            | Fault::Hang
            | Fault::Crashed { .. }
            | Fault::Exception { .. }
            | Fault::Exit { .. } => return self.again(&format!("{}{said}", reason.cause.kind())),
        };
        Decision::Stop { why: format!("{hopeless}{said}") }
    }

    fn after_memory(&mut self, reason: &Reason) -> Decision {
        self.has_failed = true;
        self.shortage = Some(reason.cause.clone());
        self.remember(Outcome::Failed(reason.cause.kind().to_owned()));
        match self.next_step(&reason.cause) {
            Ok(taken) => {
                let why = format!("{}: {}", words(&reason.cause), taken.notes.join(", "));
                self.taken.push(taken);
                self.is_unproven = true;
                self.again(&why)
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
            return self.again(&format!("the program does not know `{RESUMING}`: {said}"));
        }
        let Some(taken) = self.taken.pop() else { return Decision::Stop { why: said.to_owned() } };
        self.refused.insert(taken.name.clone());
        let why = format!("the program did not take the step `{}` ({said}), which is undone", taken.name);
        match self.next_step(&self.shortage.clone().unwrap_or_else(unknown_shortage)) {
            Ok(next) => {
                let why = format!("{why}; instead: {}", next.notes.join(", "));
                self.taken.push(next);
                self.is_unproven = true;
                self.again(&why)
            }
            Err(none) => Decision::Stop { why: format!("{why}; {none}") },
        }
    }
}

impl Repair for Mender {
    fn start(&mut self) -> Attempt {
        self.recall();
        self.attempt(&self.configuration().clone()).unwrap_or_else(|error| {
            // What can't be written can't be started; the command as it was given can.
            self.taken.clear();
            let notes = vec![format!("begins as given: {} can't be written: {error}", self.folder.display())];
            Attempt { argv: self.given.argv.clone(), env: Vec::new(), notes }
        })
    }

    fn next(&mut self, ending: &Ending) -> Verdict {
        let reason = classify(ending);
        let has_trained = ending.progress.is_some_and(|progress| progress.step > 0);
        let is_new = std::mem::take(&mut self.is_unproven) && !has_trained;
        let never_begins = never_begins(&self.given.argv, ending.code, &reason);
        let decision = match (&reason.cause, never_begins) {
            (Cause::CardMemory { .. } | Cause::HostMemory(_), _) => self.after_memory(&reason),
            _ if ending.is_unknown() => {
                let (kind, why) = (UNKNOWN.to_owned(), UNKNOWN_END.to_owned());
                return Verdict { cause: kind.clone(), kind, decision: Decision::Stop { why } };
            }
            (Cause::Done, _) => {
                self.worked();
                Decision::Stop { why: "it is done".to_owned() }
            }
            (Cause::Fault(fault), _) if is_new && may_refuse(fault) => self.after_refusal(&reason),
            (Cause::Fault(_), Some(why)) => Decision::Stop { why },
            (Cause::Fault(fault), None) => {
                if has_trained {
                    self.worked();
                }
                self.after_fault(fault, &reason)
            }
        };
        Verdict { kind: kind(&reason.cause), cause: cause(&reason), decision }
    }

    fn past(&self) -> Past {
        Past {
            steps: self.names(),
            refused: self.refused.iter().cloned().collect(),
            has_failed: self.has_failed,
            is_unproven: self.is_unproven,
        }
    }

    fn resume(&mut self, past: &Past) {
        self.take_again(&past.steps);
        self.refused = past.refused.iter().cloned().collect();
        (self.has_failed, self.is_unproven) = (past.has_failed, past.is_unproven);
    }
}
