//! Builds a run's view from the records of its journal.
//!
//! ```text
//!   session 1   1 ─── 10 ─── 20 ✗          killed; resumed from the checkpoint of step 15:
//!   session 2            16 ─── 20 ─── 30  session 1 counts only steps below its cutoff, 16
//! ```
//! A cutoff is known only after the records that it cuts, so the journal is read twice. Records that are added later
//! are read once, unless they bring a new cutoff.

use crate::events::{push, words};
use crate::run_view::{HeatAction, LastStep, Noted, RunView, SavedCheckpoint, Standing};
use crate::text::{LINE, NAME, clean};
use plimsoll_telemetry::{EnergyUse, Event, Level, Lineage, Record};
use std::collections::{BTreeMap, VecDeque};

/// Largest accepted step.
const LAST_STEP: u64 = 1 << 36;
/// Maximum number of listed checkpoints, the newest.
const CHECKPOINTS: usize = 30;
/// Maximum number of listed problems.
pub(crate) const PROBLEMS: usize = 20;
/// Maximum number of heat actions kept, the newest.
const ACTIONS: usize = 200;
/// Maximum number of notes kept, the newest.
const NOTES: usize = 30;
/// Maximum length of a currency name.
const CURRENCY: usize = 8;
/// Number of recent steps used to estimate the remaining time.
const RECENT: usize = 64;

/// For each session of a lineage, the first step that a later session repeated.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Cutoffs(Vec<u64>);

impl Cutoffs {
    /// Computes the cutoffs from the first steps of the sessions, in order.
    pub fn of(mut first_steps: Vec<u64>) -> Self {
        let mut cutoff = u64::MAX;
        for first_step in first_steps.iter_mut().rev() {
            let of_later = cutoff;
            cutoff = cutoff.min(*first_step);
            *first_step = of_later;
        }
        Self(first_steps)
    }

    fn get(&self, session: usize) -> u64 {
        self.0.get(session).copied().unwrap_or(u64::MAX)
    }
}

/// The first step of the session that a record begins, if it belongs to this lineage.
pub(crate) fn first_step(record: &Record, lineage: &Lineage) -> Option<u64> {
    match record.event {
        Event::RunStarted { first_step, .. } if lineage.has(record.branch, first_step) => Some(first_step),
        _ => None,
    }
}

/// Reads records.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    pub view: RunView,
    lineage: Lineage,
    cutoffs: Cutoffs,
    /// Whether a session repeated steps of an earlier one without a known cutoff, so that the journal must be read
    /// again.
    pub is_outdated: bool,
    /// Time up to which the run's duration has been counted, s.
    counted_s: f64,
    saved: BTreeMap<u64, SavedCheckpoint>,
    /// Recent steps of this session with their times, s.
    recent: VecDeque<(u64, f64)>,
}

impl Reader {
    pub fn new(view: RunView, lineage: Lineage, cutoffs: Cutoffs) -> Self {
        Self {
            view,
            lineage,
            cutoffs,
            is_outdated: false,
            counted_s: 0.0,
            saved: BTreeMap::new(),
            recent: VecDeque::new(),
        }
    }

    pub fn take(&mut self, record: Record) {
        let begins = first_step(&record, &self.lineage);
        let Record { time_s, branch, event, .. } = record;
        let time_s = if time_s.is_finite() { time_s } else { 0.0 };
        let view = &mut self.view;
        view.first_s = view.first_s.or(Some(time_s));
        view.last_s = Some(time_s);
        if let Some(line) = words(&event) {
            push(&mut view.events, time_s, line);
        }
        let cutoff = view.sessions.checked_sub(1).map_or(u64::MAX, |session| self.cutoffs.get(session));
        let lineage = &self.lineage;
        let is_ours = |step: u64| step <= LAST_STEP && step < cutoff && lineage.has(branch, step);
        match event {
            Event::RunStarted { name, model, parameters, planned_bytes, budget_bytes, last_step, .. } => {
                if let Some(first_step) = begins {
                    view.sessions += 1;
                    self.is_outdated |= first_step <= view.step;
                }
                (view.name, view.model) = (clean(&name, NAME), Some(clean(&model, NAME)));
                view.parameters = Some(parameters);
                (view.planned_bytes, view.budget_bytes) = (Some(planned_bytes), Some(budget_bytes));
                (view.last_step, view.standing) = (last_step, Standing::Running);
                view.is_paused = false;
                self.counted_s = time_s;
                self.recent.clear();
                return;
            }
            Event::Step { step, loss, learning_rate, grad_norm, step_ms, tokens_per_s, memory_bytes }
                if is_ours(step) =>
            {
                view.step = view.step.max(step);
                view.losses.push(step, loss);
                view.learning_rate.push(step, learning_rate);
                view.grad_norm.push(step, grad_norm);
                view.tokens_per_s.push(step, tokens_per_s);
                view.memory_bytes.push(step, memory_bytes as f64);
                view.last = Some(LastStep {
                    step,
                    time_s,
                    loss,
                    learning_rate,
                    grad_norm,
                    step_ms,
                    tokens_per_s,
                    memory_bytes,
                });
                self.step_completed(step, time_s);
            }
            Event::UpdateSkipped { step, loss, .. } if is_ours(step) => {
                view.step = view.step.max(step);
                view.losses.push(step, loss);
                view.skipped_updates += 1;
                self.step_completed(step, time_s);
            }
            Event::Evaluated { step, loss, average_loss, .. } if is_ours(step) => {
                view.held_out.push(step, loss);
                average_loss.into_iter().for_each(|loss| view.averaged.push(step, loss));
            }
            Event::CheckpointSaved { step, bytes, milliseconds, .. } => {
                self.saved.insert(step, SavedCheckpoint { step, bytes, milliseconds, is_there: false });
                if self.saved.len() > CHECKPOINTS {
                    self.saved.pop_first();
                    view.more_checkpoints += 1;
                }
            }
            Event::EventsLost { events, reason } => {
                view.problems.push(clean(&format!("the journal lost {events} events: {reason}"), LINE));
                view.problems.truncate(PROBLEMS);
            }
            Event::Heat { card, what } => heat_action(view, time_s, &card, &what),
            Event::Health { card, what, advice, level, .. } => {
                let what = card.map_or(what.clone(), |card| format!("{card}: {what}"));
                note(view, Noted { time_s, level, what, advice });
            }
            Event::OutOfMemoryAverted { what } => {
                let what = format!("out of memory averted: {what}");
                note(view, Noted { time_s, level: Level::Warn, what, advice: None });
            }
            Event::MemoryPressure { what, waits, .. } => {
                view.is_paused |= waits;
                let what = format!("memory pressure: {what}");
                note(view, Noted { time_s, level: Level::Warn, what, advice: None });
            }
            Event::Energy(energy) => {
                let currency = energy.currency.filter(|name| name.chars().count() <= CURRENCY);
                let currency = currency.map(|name| clean(&name, CURRENCY));
                view.energy = Some(EnergyUse { currency, ..energy });
            }
            Event::Paused { .. } => view.is_paused = true,
            Event::Unpaused { .. } => {
                view.is_paused = false;
                // A pause says nothing about the pace.
                self.recent.clear();
            }
            // These events fall between two sessions.
            Event::Resumed { .. } | Event::Branched { .. } | Event::CheckpointSkipped { .. } => return,
            Event::Finished { .. } => view.standing = Standing::Finished,
            Event::Interrupted { .. } => view.standing = Standing::Interrupted,
            Event::StoppedForHeat { .. } => view.standing = Standing::TooHot,
            Event::Diverged { .. } => view.standing = Standing::Diverged,
            Event::Unsaved { .. } => view.standing = Standing::Unsaved,
            _ => {}
        }
        // The clock may be set back.
        if time_s > self.counted_s {
            self.view.seconds += time_s - self.counted_s;
            self.counted_s = time_s;
        }
    }

    /// Records that a step was completed.
    fn step_completed(&mut self, step: u64, time_s: f64) {
        self.view.times_s.push(step, time_s);
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((step, time_s));
    }

    /// Updates the derived values.
    pub fn settle(&mut self) {
        self.view.checkpoints = self.saved.values().rev().cloned().collect();
        self.view.seconds_left = self.seconds_left();
    }

    /// Estimates the remaining time from the pace of the last steps, including everything between them.
    fn seconds_left(&self) -> Option<f64> {
        let ((first, began_s), (last, ended_s)) = (*self.recent.front()?, *self.recent.back()?);
        let left = self.view.last_step?.checked_sub(self.view.step)?;
        let steps = last.checked_sub(first).filter(|steps| *steps > 0)?;
        let pace = (ended_s - began_s) / steps as f64;
        (self.view.standing == Standing::Running && pace >= 0.0).then_some(left as f64 * pace)
    }
}

/// Adds a heat action, made safe to show.
pub(crate) fn heat_action(view: &mut RunView, time_s: f64, card: &str, what: &str) {
    if view.heat.len() == ACTIONS {
        view.heat.pop_front();
    }
    view.heat.push_back(HeatAction { time_s, card: clean(card, NAME), what: clean(what, LINE) });
    note(view, Noted { time_s, level: Level::Warn, what: format!("{card}: {what}"), advice: None });
}

/// Adds a note, made safe to show, and drops the oldest one if there are too many.
fn note(view: &mut RunView, note: Noted) {
    if view.notes.len() == NOTES {
        view.notes.pop_front();
        view.more_notes += 1;
    }
    let advice = note.advice.map(|advice| clean(&advice, LINE));
    view.notes.push_back(Noted { what: clean(&note.what, LINE), advice, ..note });
}
