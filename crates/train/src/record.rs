//! What a run's folder tells of the run: one that has ended, that crashed, or that is still going. Nothing in the folder is
//! trusted, and nothing is written there. What is missing or can't be read is left out, and that is said.
//! Not here: the losses that a resumed run needs again (`history.rs`), pages (`plimsoll/src/report/run_page`).

use crate::checkpoint::list;
use crate::{Report, TrainError};
use plimsoll_files::{open_regular, read_text};
use plimsoll_telemetry::{Branches, Curve, EnergyUse, Event, JournalError, Level, Lineage, Record, for_each_record};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::TryLockError;
use std::io::ErrorKind;
use std::path::Path;

/// Far more than settings take.
const SETTINGS_BYTES_MAX: Bytes = Bytes::mib(1);
/// Room for the losses of some million steps.
const REPORT_BYTES_MAX: Bytes = Bytes::mib(128);
/// No run makes as many steps.
const LAST_STEP: u64 = 1 << 36;
/// Checkpoints that are listed, the newest.
const CHECKPOINTS: usize = 30;

/// What a run wrote after its last step, to see what it learned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// The last step before it.
    pub step: u64,
    /// What it was to continue.
    pub prompt: String,
    /// What it wrote.
    pub text: String,
}

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It made all its steps.
    Finished,
    /// It was asked to stop.
    Interrupted,
    /// A card was too hot, and the state was saved.
    TooHot,
    /// Loss or gradient stopped being numbers.
    Diverged,
    /// It ended, and its last state is not on disk.
    Unsaved,
    /// A process is at it.
    Running,
    /// Its last session left no word of its end: it was killed, or the machine went down.
    CutShort,
    /// It never began.
    NotStarted,
}

/// A checkpoint that was saved.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedCheckpoint {
    /// After which step.
    pub step: u64,
    /// Size of all its files.
    pub bytes: u64,
    /// Time that it took.
    pub milliseconds: f64,
    /// Whether it is there still.
    pub is_there: bool,
}

/// Something about the run's card or machine that a person should know.
#[derive(Debug, Clone, PartialEq)]
pub struct Noted {
    /// Seconds since 1970, UTC.
    pub time_s: f64,
    /// How bad it is.
    pub level: Level,
    /// What happened, with the card.
    pub what: String,
    /// What to do about it.
    pub advice: Option<String>,
}

/// What a run's folder tells.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    /// Its name; that of the folder, unless the journal has one.
    pub name: String,
    /// The model's name or path.
    pub model: Option<String>,
    /// Trained parameters.
    pub parameters: Option<u64>,
    /// Where it stands.
    pub standing: Standing,
    /// How often it was started or resumed, on the way to where it stands.
    pub sessions: usize,
    /// The last step that was made.
    pub step: u64,
    /// The step that it is to end with, if that is known.
    pub last_step: Option<u64>,
    /// Time between the first and the last event of each session, in all.
    pub seconds: f64,
    /// Bytes of the plan.
    pub planned_bytes: Option<u64>,
    /// Bytes allowed.
    pub budget_bytes: Option<u64>,
    /// Mean loss a token of each step; nats.
    pub losses: Curve,
    /// Held-out losses.
    pub held_out: Curve,
    /// Held-out losses of averaged weights.
    pub averaged: Curve,
    /// Tokens trained on, a second.
    pub tokens_per_s: Curve,
    /// Memory held on the device, in bytes.
    pub memory_bytes: Curve,
    /// Steps whose update was left out, since gradients overflowed.
    pub skipped_updates: u64,
    /// The newest checkpoints that were saved, the newest first.
    pub checkpoints: Vec<SavedCheckpoint>,
    /// How many others were saved.
    pub more_checkpoints: usize,
    /// What was noted of heat, health and memory, the newest last.
    pub notes: Vec<Noted>,
    /// How many notes there were before.
    pub more_notes: usize,
    /// What the run's cards used, by the last event that tells.
    pub energy: Option<EnergyUse>,
    /// report.json, if it is of the last session.
    pub report: Option<Report>,
    /// config.yaml
    pub settings: Option<String>,
    /// What it wrote at its end.
    pub sample: Option<Sample>,
    /// What could not be read, or is not complete.
    pub problems: Vec<String>,
}

impl RunRecord {
    /// Reads a run's folder. The journal is read twice, and never held.
    /// Errors: it has no journal that can be read.
    pub fn read(folder: &Path) -> Result<Self, TrainError> {
        let journal = folder.join("journal.jsonl");
        let mut problems = Vec::new();
        let branches = Branches::read(&folder.join("checkpoints")).unwrap_or_else(|error| {
            problems.push(format!("its branches can't be told apart: {error}"));
            Branches::default()
        });
        let mut reader = Reader::new(folder, branches.lineage(), problems);
        reader.find_cutoffs(&journal)?;
        for_each_record(&journal, |record| reader.take(record))?;
        Ok(reader.finish(folder))
    }
}

/// Reads records one by one.
struct Reader {
    record: RunRecord,
    lineage: Lineage,
    /// For each session of the lineage the step from which on a later one made its steps again.
    cutoffs: Vec<u64>,
    /// When the session at hand began.
    began_s: f64,
    saved: BTreeMap<u64, SavedCheckpoint>,
    saved_before: usize,
}

impl Reader {
    fn new(folder: &Path, lineage: Lineage, problems: Vec<String>) -> Self {
        let name = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let name = name.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let record = RunRecord {
            name,
            model: None,
            parameters: None,
            standing: Standing::NotStarted,
            sessions: 0,
            step: 0,
            last_step: None,
            seconds: 0.0,
            planned_bytes: None,
            budget_bytes: None,
            losses: Curve::default(),
            held_out: Curve::default(),
            averaged: Curve::default(),
            tokens_per_s: Curve::default(),
            memory_bytes: Curve::default(),
            skipped_updates: 0,
            checkpoints: Vec::new(),
            more_checkpoints: 0,
            notes: Vec::new(),
            more_notes: 0,
            energy: None,
            report: None,
            settings: None,
            sample: None,
            problems,
        };
        Self { record, lineage, cutoffs: Vec::new(), began_s: 0.0, saved: BTreeMap::new(), saved_before: 0 }
    }

    /// Finds out which steps of a session a later one made again.
    fn find_cutoffs(&mut self, journal: &Path) -> Result<(), JournalError> {
        let mut first_steps = Vec::new();
        for_each_record(journal, |record| {
            if let Event::RunStarted { first_step, .. } = record.event
                && self.lineage.has(record.branch, first_step)
            {
                first_steps.push(first_step);
            }
        })?;
        let mut cutoff = u64::MAX;
        for first_step in first_steps.iter_mut().rev() {
            let of_later = cutoff;
            cutoff = cutoff.min(*first_step);
            *first_step = of_later;
        }
        self.cutoffs = first_steps;
        Ok(())
    }

    fn take(&mut self, Record { time_s, branch, event, .. }: Record) {
        let Self { record, lineage, cutoffs, .. } = self;
        let cutoff = record.sessions.checked_sub(1).and_then(|session| cutoffs.get(session).copied());
        let is_ours =
            |step: u64| step <= LAST_STEP && lineage.has(branch, step) && cutoff.is_none_or(|cutoff| step < cutoff);
        match event {
            Event::RunStarted { name, model, parameters, planned_bytes, budget_bytes, first_step, last_step } => {
                if lineage.has(branch, first_step) {
                    record.sessions += 1;
                }
                (record.name, record.model, record.parameters) = (name, Some(model), Some(parameters));
                (record.planned_bytes, record.budget_bytes) = (Some(planned_bytes), Some(budget_bytes));
                (record.last_step, record.standing) = (last_step, Standing::Running);
                self.began_s = time_s;
                return;
            }
            Event::Step { step, loss, tokens_per_s, memory_bytes, .. } if is_ours(step) => {
                record.step = record.step.max(step);
                record.losses.push(step, loss);
                record.tokens_per_s.push(step, tokens_per_s);
                record.memory_bytes.push(step, memory_bytes as f64);
            }
            Event::UpdateSkipped { step, loss, .. } if is_ours(step) => {
                record.step = record.step.max(step);
                record.losses.push(step, loss);
                record.skipped_updates += 1;
            }
            Event::Evaluated { step, loss, average_loss, .. } if is_ours(step) => {
                record.held_out.push(step, loss);
                average_loss.into_iter().for_each(|loss| record.averaged.push(step, loss));
            }
            Event::CheckpointSaved { step, bytes, milliseconds, .. } => {
                self.saved.insert(step, SavedCheckpoint { step, bytes, milliseconds, is_there: false });
                if self.saved.len() > CHECKPOINTS {
                    self.saved.pop_first();
                    self.saved_before += 1;
                }
            }
            Event::Heat { card, what } => {
                record.note(Noted { time_s, level: Level::Warn, what: format!("{card}: {what}"), advice: None });
            }
            Event::Health { card, what, advice, level, .. } => {
                let what = card.map_or(what.clone(), |card| format!("{card}: {what}"));
                record.note(Noted { time_s, level, what, advice });
            }
            Event::OutOfMemoryAverted { what } => {
                let what = format!("out of memory averted: {what}");
                record.note(Noted { time_s, level: Level::Warn, what, advice: None });
            }
            Event::Energy(energy) => {
                let currency = energy.currency.filter(|name| name.chars().count() <= CURRENCY);
                record.energy = Some(EnergyUse { currency, ..energy });
            }
            Event::EventsLost { events, reason } => {
                record.problems.push(format!("the journal lost {events} events: {reason}"));
                record.problems.truncate(PROBLEMS);
            }
            // Of the time between two sessions.
            Event::Resumed { .. } | Event::Branched { .. } | Event::CheckpointSkipped { .. } => return,
            Event::Finished { .. } => record.standing = Standing::Finished,
            Event::Interrupted { .. } => record.standing = Standing::Interrupted,
            Event::StoppedForHeat { .. } => record.standing = Standing::TooHot,
            Event::Diverged { .. } => record.standing = Standing::Diverged,
            Event::Unsaved { .. } => record.standing = Standing::Unsaved,
            _ => {}
        }
        // Clocks may be set back.
        if time_s > self.began_s {
            record.seconds += time_s - self.began_s;
            self.began_s = time_s;
        }
    }

    /// Everything that the journal does not tell.
    fn finish(self, folder: &Path) -> RunRecord {
        let Self { mut record, saved, saved_before, .. } = self;
        if record.standing == Standing::Running && !is_locked(&folder.join("lock")) {
            record.standing = Standing::CutShort;
        }
        let there = list(&folder.join("checkpoints")).unwrap_or_else(|error| {
            record.problems.push(format!("its checkpoints can't be listed: {error}"));
            Vec::new()
        });
        let is_there = |step: u64| there.iter().any(|(other, _)| *other == step);
        record.checkpoints = saved.into_values().rev().collect();
        record.checkpoints.iter_mut().for_each(|saved| saved.is_there = is_there(saved.step));
        record.more_checkpoints = saved_before;
        record.settings = record.text(folder, "config.yaml", SETTINGS_BYTES_MAX);
        record.sample = record.json(folder, "sample.json", SETTINGS_BYTES_MAX);
        if !matches!(record.standing, Standing::Running | Standing::CutShort | Standing::NotStarted) {
            let report = record.json::<Report>(folder, "report.json", REPORT_BYTES_MAX);
            record.report = report.filter(|report| report.losses.len() as u64 >= record.step);
        }
        record
    }
}

/// Problems that are listed at most.
const PROBLEMS: usize = 20;

/// Notes that are kept at most, the newest, and letters of each.
const NOTES: usize = 30;
const NOTE: usize = 400;

/// Letters of a currency at most.
const CURRENCY: usize = 8;

impl RunRecord {
    fn note(&mut self, mut note: Noted) {
        let cut = |text: &mut String| *text = text.chars().take(NOTE).collect();
        cut(&mut note.what);
        note.advice.iter_mut().for_each(cut);
        self.notes.push(note);
        if self.notes.len() > NOTES {
            self.notes.remove(0);
            self.more_notes += 1;
        }
    }

    /// The text of one of the folder's files; none if it is not there or can't be read, and the latter is a problem.
    fn text(&mut self, folder: &Path, name: &str, limit: Bytes) -> Option<String> {
        match read_text(&folder.join(name), limit) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => {
                self.problems.push(format!("{name} can't be read: {error}"));
                None
            }
        }
    }

    fn json<T: for<'a> Deserialize<'a>>(&mut self, folder: &Path, name: &str, limit: Bytes) -> Option<T> {
        let read = serde_json::from_str(&self.text(folder, name, limit)?);
        read.map_err(|error| self.problems.push(format!("{name} is damaged: {error}"))).ok()
    }
}

/// Whether a process holds a run's lock.
fn is_locked(lock: &Path) -> bool {
    open_regular(lock).is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}
