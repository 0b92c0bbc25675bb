//! A run as views show it. What is not known is `None`.

use crate::events::EventLine;
use crate::text::{NAME, clean};
use plimsoll_telemetry::{Curve, EnergyUse, Level};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::path::PathBuf;

/// Who trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// This program.
    Train,
    /// Another program, which this one keeps alive.
    Supervised,
}

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
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
    /// A supervised program failed, and was not started again.
    Failed,
    /// A process is at it.
    Running,
    /// Its last session left no word of its end: it was killed, or the machine went down.
    CutShort,
    /// It never began.
    NotStarted,
}

impl Standing {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Interrupted => "interrupted",
            Self::TooHot => "stopped for heat",
            Self::Diverged => "diverged",
            Self::Unsaved => "ended unsaved",
            Self::Failed => "failed",
            Self::Running => "running",
            Self::CutShort => "cut short",
            Self::NotStarted => "not started",
        }
    }
}

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

/// A checkpoint that was saved.
#[derive(Debug, Clone, PartialEq, Serialize)]
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

/// The last step that was made.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LastStep {
    /// Which.
    pub step: u64,
    /// When: seconds since 1970, UTC.
    pub time_s: f64,
    /// Mean loss a token; nats.
    pub loss: f64,
    /// Learning rate of the update.
    pub learning_rate: f64,
    /// Norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Its duration.
    pub step_ms: f64,
    /// Tokens trained on, a second.
    pub tokens_per_s: f64,
    /// Memory held on the device.
    pub memory_bytes: u64,
}

/// What was done about heat, or noticed of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeatAction {
    /// When: seconds since 1970, UTC.
    pub time_s: f64,
    /// The card's name and number.
    pub card: String,
    /// What happened, with figures.
    pub what: String,
}

/// Something about a run's card or machine that a person should know.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Noted {
    /// When: seconds since 1970, UTC.
    pub time_s: f64,
    /// How bad it is.
    pub level: Level,
    /// What happened, with the card.
    pub what: String,
    /// What to do about it.
    pub advice: Option<String>,
}

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunView {
    /// What no other folder has; for links. Hexadecimal digits.
    pub id: String,
    /// Its folder, from the root where that is known.
    pub folder: PathBuf,
    /// Its name; that of the folder, unless the journal has one.
    pub name: String,
    /// Who trains.
    pub kind: Kind,
    /// What was started, where that is known.
    pub command: Vec<String>,
    /// The name of its script or program, without arguments; empty for a run of `plimsoll train`.
    pub program: String,
    /// The model's name or path.
    pub model: Option<String>,
    /// Trained parameters.
    pub parameters: Option<u64>,
    /// Where it stands.
    pub standing: Standing,
    /// Whether it waits, since somebody asked it to.
    pub is_paused: bool,
    /// How often it was started or resumed, on the way to where it stands.
    pub sessions: usize,
    /// The last step that was made.
    pub step: u64,
    /// The step that it is to end with, if that is known.
    pub last_step: Option<u64>,
    /// Time between the first and the last event of each session, in all.
    pub seconds: f64,
    /// The time that is left, as fast as its last steps were made.
    pub seconds_left: Option<f64>,
    /// When its first event was: seconds since 1970, UTC.
    pub first_s: Option<f64>,
    /// When its last event was.
    pub last_s: Option<f64>,
    /// Bytes of the plan.
    pub planned_bytes: Option<u64>,
    /// Bytes allowed.
    pub budget_bytes: Option<u64>,
    /// Where it trains, as its settings say: `cpu`, `cuda:0`.
    pub device: Option<String>,
    /// The last step that was made, as the journal has it.
    pub last: Option<LastStep>,
    /// Mean loss a token of each step; nats.
    pub losses: Curve,
    /// Held-out losses.
    pub held_out: Curve,
    /// Held-out losses of averaged weights.
    pub averaged: Curve,
    /// Learning rates.
    pub learning_rate: Curve,
    /// Norms of gradients before clipping.
    pub grad_norm: Curve,
    /// Tokens trained on, a second.
    pub tokens_per_s: Curve,
    /// Memory held on the device, in bytes.
    pub memory_bytes: Curve,
    /// When steps were made: seconds since 1970, UTC.
    pub times_s: Curve,
    /// Steps whose update was left out, since gradients overflowed.
    pub skipped_updates: u64,
    /// The newest checkpoints that were saved, the newest first.
    pub checkpoints: Vec<SavedCheckpoint>,
    /// How many others were saved.
    pub more_checkpoints: usize,
    /// What happened last, the oldest first; steps are not among it.
    pub events: VecDeque<EventLine>,
    /// What was done about heat, the oldest first.
    pub heat: VecDeque<HeatAction>,
    /// What was noted of heat, health and memory, the newest last.
    pub notes: VecDeque<Noted>,
    /// How many notes there were before.
    pub more_notes: usize,
    /// What the run's cards used, by the last event that tells.
    pub energy: Option<EnergyUse>,
    /// The process that trains, or that keeps those that do, while it is there.
    pub process: Option<u32>,
    /// The user that it runs as, by number.
    pub process_uid: Option<u32>,
    /// All of its processes that are known.
    pub processes: Vec<u32>,
    /// config.yaml, as it is: for views to escape.
    pub settings: Option<String>,
    /// What it wrote at its end, as it is: for views to escape.
    pub sample: Option<Sample>,
    /// What could not be read, or is not complete.
    pub problems: Vec<String>,
}

impl RunView {
    /// A run of which nothing is known yet.
    pub fn new(id: String, folder: PathBuf, name: String, kind: Kind) -> Self {
        Self {
            id,
            folder,
            name,
            kind,
            command: Vec::new(),
            program: String::new(),
            model: None,
            parameters: None,
            standing: Standing::NotStarted,
            is_paused: false,
            sessions: 0,
            step: 0,
            last_step: None,
            seconds: 0.0,
            seconds_left: None,
            first_s: None,
            last_s: None,
            planned_bytes: None,
            budget_bytes: None,
            device: None,
            last: None,
            losses: Curve::default(),
            held_out: Curve::default(),
            averaged: Curve::default(),
            learning_rate: Curve::default(),
            grad_norm: Curve::default(),
            tokens_per_s: Curve::default(),
            memory_bytes: Curve::default(),
            times_s: Curve::default(),
            skipped_updates: 0,
            checkpoints: Vec::new(),
            more_checkpoints: 0,
            events: VecDeque::new(),
            heat: VecDeque::new(),
            notes: VecDeque::new(),
            more_notes: 0,
            energy: None,
            process: None,
            process_uid: None,
            processes: Vec::new(),
            settings: None,
            sample: None,
            problems: Vec::new(),
        }
    }

    /// The value of a setting in config.yaml, where it stands in one line.
    pub fn setting(&self, name: &str) -> Option<String> {
        let values = self.settings.as_deref()?.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = values.map(|value| value.trim().trim_matches(['"', '\''])).next()?;
        Some(clean(value, NAME)).filter(|value| !value.is_empty())
    }

    /// Where it stands, in words, of which a pause is one.
    pub fn standing_words(&self) -> &'static str {
        if self.is_paused { "paused" } else { self.standing.words() }
    }

    /// The part that is done, from 0 to 1, where its end is known.
    pub fn done(&self) -> Option<f64> {
        let last = self.last_step.filter(|last| *last > 0)?;
        Some((self.step as f64 / last as f64).min(1.0))
    }

    /// The view as it was at a time, as far as curves tell: for replays. Of a step within a stretch of many, the stretch
    /// before is the last that is shown.
    pub fn at(&self, time_s: f64) -> Self {
        let made = self.times_s.stretches().iter().take_while(|stretch| stretch.last.value <= time_s);
        let (step, when) = made.last().map_or((0, None), |stretch| (stretch.last.step, Some(stretch.last.value)));
        let cut = |curve: &Curve| curve.up_to(step);
        let mut view = Self {
            losses: cut(&self.losses),
            held_out: cut(&self.held_out),
            averaged: cut(&self.averaged),
            learning_rate: cut(&self.learning_rate),
            grad_norm: cut(&self.grad_norm),
            tokens_per_s: cut(&self.tokens_per_s),
            memory_bytes: cut(&self.memory_bytes),
            times_s: cut(&self.times_s),
            checkpoints: self.checkpoints.iter().filter(|saved| saved.step <= step).cloned().collect(),
            events: self.events.iter().filter(|event| event.time_s <= time_s).cloned().collect(),
            heat: self.heat.iter().filter(|action| action.time_s <= time_s).cloned().collect(),
            notes: self.notes.iter().filter(|note| note.time_s <= time_s).cloned().collect(),
            ..self.clone()
        };
        let is_over = self.last_s.is_none_or(|last| last <= time_s);
        if is_over {
            return view;
        }
        let has_begun = self.first_s.is_some_and(|first| first <= time_s);
        (view.standing, view.is_paused) = (if has_begun { Standing::Running } else { Standing::NotStarted }, false);
        (view.step, view.last_s, view.sample, view.energy) = (step, when, None, None);
        view.seconds = self.first_s.map_or(0.0, |first| (time_s - first).min(self.seconds).max(0.0));
        let value = |curve: &Curve| curve.whole().map(|whole| whole.last.value);
        view.last = (|| {
            Some(LastStep {
                step,
                time_s: when?,
                loss: value(&view.losses)?,
                learning_rate: value(&view.learning_rate)?,
                grad_norm: value(&view.grad_norm)?,
                step_ms: self.last?.step_ms,
                tokens_per_s: value(&view.tokens_per_s)?,
                memory_bytes: value(&view.memory_bytes)? as u64,
            })
        })();
        let left = self.last_step.or(Some(self.step)).map(|last| last.saturating_sub(step));
        let first_step = self.times_s.whole().map(|whole| whole.first);
        let pace = first_step.zip(when).filter(|(first, _)| step > first.step);
        let pace = pace.map(|(first, when)| (when - first.value) / (step - first.step) as f64);
        view.seconds_left = left.zip(pace).map(|(left, pace)| left as f64 * pace);
        view
    }
}
