//! The repair that answers an out-of-memory error with the next step of the ladder, resumes from a checkpoint, and
//! remembers which steps helped.
//! Not here: the meaning of ends (`ends/`), the steps (`ladder/`), the wording of causes (`words.rs`), processes and
//! restart limits (`supervisor/`).

#[cfg(test)]
mod tests;
mod words;

use crate::UNKNOWN_END;
use crate::ends::{Cause, Fault, Reason, classify};
use crate::failures::{Failures, Outcome, Start, Subject};
use crate::hopeless::never_begins;
use crate::ladder::{Configuration, Ladder, Taken, resumed};
use crate::memory::MemoryKind;
use crate::repair::{Decision, Ending, Repair, Verdict};
use plimsoll_files::Disk;
use plimsoll_registry::{Attempt, RepairState, UNKNOWN};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use words::{cause, kind, may_refuse, unknown_shortage, words};

/// The trainers' key for resuming.
const RESUMING: &str = "resume_from_checkpoint";

/// What a run does when no step is left against running out of memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnNoMemory {
    /// It waits until other processes release memory.
    Wait,
    /// It runs with its smallest settings until then, or waits if it has no smaller ones.
    Minimal,
    /// It ends.
    #[default]
    Stop,
}

/// Repairs one worker's run.
#[derive(Debug)]
pub struct Mender {
    ladder: Ladder,
    /// The user's command.
    given: Configuration,
    /// Steps taken so far.
    taken: Vec<Taken>,
    /// Names of steps that the program rejected.
    refused: BTreeSet<String>,
    /// Whether the last step has not proved to work yet, so that it may be the reason for another error.
    is_unproven: bool,
    /// Whether this run or a remembered one ran out of memory.
    has_failed: bool,
    /// The last out-of-memory error of this run.
    shortage: Option<Cause>,
    memory: Option<(Failures, Subject)>,
    disk: Disk,
    folder: PathBuf,
    /// Notes to show with the next attempt.
    notes: Vec<String>,
    on_no_memory: OnNoMemory,
    /// The number of steps before the smallest settings, while the run has these.
    reduced_after: Option<usize>,
}

impl Mender {
    /// Repairs this command. Stores changed copies of files in `folder`, which it creates when needed.
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
            on_no_memory: OnNoMemory::default(),
            reduced_after: None,
        }
    }

    /// Does this when no step is left.
    #[must_use]
    pub fn when_no_step_is_left(mut self, on_no_memory: OnNoMemory) -> Self {
        self.on_no_memory = on_no_memory;
        self
    }

    /// Remembers outcomes in this file, for this card (name and memory).
    #[must_use]
    pub fn remembering(mut self, failures: Failures, card: &str) -> Self {
        let read = self.given.read();
        let model = read.as_ref().and_then(|read| read.model.clone()).unwrap_or_default();
        // If a later version formats this differently, old entries no longer match. Nothing else breaks.
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

    /// Starts from the steps that the last run with the same settings reached.
    fn recall(&mut self) {
        let Some((failures, subject)) = &self.memory else { return };
        let path = failures.path().display().to_string();
        let (start, problem) = failures.start(subject);
        self.notes.extend(problem.map(|what| format!("{path} is damaged and will be replaced: {what}")));
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
            let did = if failed { "failed last time, so one more step is taken" } else { "worked last time" };
            self.notes.push(format!(
                "starting with the steps remembered for this GPU, model and settings: they {did} ({path})"
            ));
        }
    }

    /// Retakes remembered steps, up to the first one that does not apply.
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

    /// Writes changed files and returns the command. Equal configurations give equal attempts, so that crash loops are
    /// detected.
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
            true => (self.configuration().clone(), "it restarts from step 0".to_owned()),
            false => {
                let resumed = resumed(self.configuration());
                (resumed.configuration, resumed.note)
            }
        };
        match self.attempt(&configuration) {
            Ok(attempt) => Decision::Again { attempt, why: format!("{why}; {from}") },
            Err(error) => Decision::Stop { why: format!("{why}, but its files can't be written: {error}") },
        }
    }

    fn remember(&mut self, outcome: Outcome) {
        let names = self.names();
        let Some((failures, subject)) = &self.memory else { return };
        if let Err(error) = failures.remember(subject, &names, outcome) {
            self.notes.push(format!("can't remember this outcome in {}: {error}", failures.path().display()));
        }
    }

    /// Remembers that the steps worked, unless the run never ran out of memory.
    fn worked(&mut self) {
        if self.has_failed {
            self.remember(Outcome::Worked);
        }
    }

    /// Restarts after a fault with an outside cause. Stops after one that the same command would repeat.
    fn after_fault(&mut self, fault: &Fault, reason: &Reason) -> Decision {
        let said = reason.said();
        let hopeless = match fault {
            Fault::Interrupted => "it was interrupted",
            Fault::DiskFull => "the disk is full",
            Fault::NotANumber => "its loss became NaN or infinite, and would again",
            Fault::KernelLimits => "a kernel exceeds the limits of the GPU at any batch size",
            Fault::DeviceAssert => "a device-side assertion failed, and would again",
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
            | Fault::Exit { .. } => return self.again(&format!("{}{said}", words(&reason.cause))),
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
            Err(none) => self.without_steps(&reason.cause, format!("{}: {none}", words(&reason.cause))),
        }
    }

    /// Decides after all steps were taken.
    fn without_steps(&mut self, cause: &Cause, why: String) -> Decision {
        let memory = if matches!(cause, Cause::HostMemory(_)) { MemoryKind::Host } else { MemoryKind::Card };
        // More free memory does not help a program within its own limit.
        let is_limited = matches!(cause, Cause::CardMemory { sizes, .. } if sizes.allowed.is_some());
        if self.on_no_memory == OnNoMemory::Stop || is_limited {
            return Decision::Stop { why };
        }
        if self.on_no_memory == OnNoMemory::Minimal
            && self.reduced_after.is_none()
            && let Some(smallest) = self.ladder.smallest(self.configuration())
        {
            self.reduced_after = Some(self.taken.len());
            let why = format!("{why}; {}", smallest.notes.join(", "));
            self.taken.push(smallest);
            return match self.again(&why) {
                Decision::Again { attempt, why } => Decision::Reduced { attempt, memory, why },
                other => other,
            };
        }
        match self.again(&why) {
            Decision::Again { attempt, why } => Decision::WhenFree { attempt, memory, why },
            other => other,
        }
    }

    /// Handles a program that rejected the last step, such as an unknown flag or a missing module: undoes the step and
    /// takes the next one against the same out-of-memory error.
    fn after_refusal(&mut self, reason: &Reason) -> Decision {
        self.is_unproven = false;
        let said = reason.line.as_deref().unwrap_or("no message");
        let mentions = |key: &str| said.replace('-', "_").contains(key);
        if mentions(RESUMING) {
            self.refused.insert(RESUMING.to_owned());
            return self.again(&format!("the program does not accept `{RESUMING}`: {said}"));
        }
        let Some(taken) = self.taken.pop() else { return Decision::Stop { why: said.to_owned() } };
        self.refused.insert(taken.name.clone());
        let why = format!("the program rejected the step `{}` ({said}), so it is undone", taken.name);
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
            // Start the user's command unchanged, since the changed files can't be written.
            self.taken.clear();
            let notes = vec![format!("starting without changes: {} can't be written: {error}", self.folder.display())];
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
                Decision::Stop { why: "it finished".to_owned() }
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

    fn restored(&mut self) -> Option<Attempt> {
        self.taken.truncate(self.reduced_after.take()?);
        self.is_unproven = false;
        match self.again("") {
            Decision::Again { attempt, .. } => Some(attempt),
            _ => None,
        }
    }

    fn past(&self) -> RepairState {
        RepairState {
            steps: self.names(),
            refused: self.refused.iter().cloned().collect(),
            has_failed: self.has_failed,
            is_unproven: self.is_unproven,
            reduced_after: self.reduced_after,
        }
    }

    fn resume(&mut self, past: &RepairState) {
        self.take_again(&past.steps);
        self.refused = past.refused.iter().cloned().collect();
        (self.has_failed, self.is_unproven) = (past.has_failed, past.is_unproven);
        self.reduced_after = past.reduced_after.filter(|before| *before < self.taken.len());
    }
}
