//! The view of a run. Unknown values are `None`.

use crate::events::EventLine;
use crate::text::{NAME, clean};
use plimsoll_telemetry::{Curve, EnergyUse, Level};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::path::PathBuf;

/// Which program trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Plimsoll itself.
    Train,
    /// Another program, which Plimsoll supervises.
    Supervised,
}

/// The status of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It completed all its steps.
    Finished,
    /// It was stopped on request.
    Interrupted,
    /// A card was too hot. The state was saved.
    TooHot,
    /// Loss or gradient became NaN or infinite.
    Diverged,
    /// It ended, and its last state is not on disk.
    Unsaved,
    /// A supervised program failed and was not restarted.
    Failed,
    /// It is running.
    Running,
    /// Its last session ended without a record: it was killed, or the machine crashed.
    CutShort,
    /// It never started.
    NotStarted,
}

impl Standing {
    /// The status in words.
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

/// Text generated after the last step, to show what the model learned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// The last step before it was generated.
    pub step: u64,
    /// The prompt.
    pub prompt: String,
    /// The generated text.
    pub text: String,
}

/// A saved checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SavedCheckpoint {
    /// The step after which it was saved.
    pub step: u64,
    /// Total size of its files.
    pub bytes: u64,
    /// Time spent saving it.
    pub milliseconds: f64,
    /// Whether it still exists.
    pub is_there: bool,
}

/// The last completed step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LastStep {
    /// The step.
    pub step: u64,
    /// Unix time in seconds, UTC.
    pub time_s: f64,
    /// Mean loss per token, nats.
    pub loss: f64,
    /// Learning rate of the update.
    pub learning_rate: f64,
    /// Norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Duration.
    pub step_ms: f64,
    /// Tokens trained on per second.
    pub tokens_per_s: f64,
    /// Memory held on the device.
    pub memory_bytes: u64,
}

/// A reaction to heat, or an observation of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeatAction {
    /// Unix time in seconds, UTC.
    pub time_s: f64,
    /// Name and index of the card.
    pub card: String,
    /// What happened, with its values.
    pub what: String,
}

/// A note about a run's card or machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Noted {
    /// Unix time in seconds, UTC.
    pub time_s: f64,
    /// Severity.
    pub level: Level,
    /// What happened, including the card.
    pub what: String,
    /// What to do about it.
    pub advice: Option<String>,
}

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunView {
    /// Unique identifier of the folder, for links. Hexadecimal digits.
    pub id: String,
    /// Its folder, as an absolute path if known.
    pub folder: PathBuf,
    /// Its name: the journal's, or else the folder's.
    pub name: String,
    /// Which program trains.
    pub kind: Kind,
    /// Its command line, if known.
    pub command: Vec<String>,
    /// Name of its script or program, without arguments; empty for a run of `plimsoll train`.
    pub program: String,
    /// The model's name or path.
    pub model: Option<String>,
    /// Number of trained parameters.
    pub parameters: Option<u64>,
    /// Status.
    pub standing: Standing,
    /// Whether it is paused on request.
    pub is_paused: bool,
    /// Number of sessions: starts and resumes that led to the current state.
    pub sessions: usize,
    /// The last completed step.
    pub step: u64,
    /// The planned last step, if known.
    pub last_step: Option<u64>,
    /// Total time between the first and the last event of each session, s.
    pub seconds: f64,
    /// Estimated remaining time at the pace of the last steps, s.
    pub seconds_left: Option<f64>,
    /// Unix time of its first event, in seconds.
    pub first_s: Option<f64>,
    /// Unix time of its last event, in seconds.
    pub last_s: Option<f64>,
    /// Planned bytes.
    pub planned_bytes: Option<u64>,
    /// Budget in bytes.
    pub budget_bytes: Option<u64>,
    /// Device named in its settings: `cpu`, `cuda:0`.
    pub device: Option<String>,
    /// The last completed step, as recorded in the journal.
    pub last: Option<LastStep>,
    /// Mean loss per token of each step, nats.
    pub losses: Curve,
    /// Held-out losses.
    pub held_out: Curve,
    /// Held-out losses of averaged weights.
    pub averaged: Curve,
    /// Learning rates.
    pub learning_rate: Curve,
    /// Norms of gradients before clipping.
    pub grad_norm: Curve,
    /// Tokens trained on per second.
    pub tokens_per_s: Curve,
    /// Memory held on the device, in bytes.
    pub memory_bytes: Curve,
    /// Unix times of the steps, in seconds.
    pub times_s: Curve,
    /// Number of steps whose update was skipped because gradients overflowed.
    pub skipped_updates: u64,
    /// The newest saved checkpoints, the newest first.
    pub checkpoints: Vec<SavedCheckpoint>,
    /// Number of older saved checkpoints, which are not listed.
    pub more_checkpoints: usize,
    /// The last events other than steps, the oldest first.
    pub events: VecDeque<EventLine>,
    /// Heat actions, the oldest first.
    pub heat: VecDeque<HeatAction>,
    /// Notes on heat, health and memory, the newest last.
    pub notes: VecDeque<Noted>,
    /// Number of older notes, which are not listed.
    pub more_notes: usize,
    /// Energy used by the run's cards, from the last event that reports it.
    pub energy: Option<EnergyUse>,
    /// The running training process, or the keeper of the training processes.
    pub process: Option<u32>,
    /// User ID of that process.
    pub process_uid: Option<u32>,
    /// All its known processes.
    pub processes: Vec<u32>,
    /// config.yaml, unescaped: views must escape it.
    pub settings: Option<String>,
    /// The text generated at its end, unescaped: views must escape it.
    pub sample: Option<Sample>,
    /// Files that could not be read, or data that is incomplete.
    pub problems: Vec<String>,
}

impl RunView {
    /// A run without data.
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

    /// The value of a setting in config.yaml, if it is on one line.
    pub fn setting(&self, name: &str) -> Option<String> {
        let values = self.settings.as_deref()?.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = values.map(|value| value.trim().trim_matches(['"', '\''])).next()?;
        Some(clean(value, NAME)).filter(|value| !value.is_empty())
    }

    /// The status in words, including `paused`.
    pub fn standing_words(&self) -> &'static str {
        if self.is_paused { "paused" } else { self.standing.words() }
    }

    /// Completed fraction, from 0 to 1, if the last step is known.
    pub fn done(&self) -> Option<f64> {
        let last = self.last_step.filter(|last| *last > 0)?;
        Some((self.step as f64 / last as f64).min(1.0))
    }

    /// The view as of an earlier time, as far as curves allow, for replays. Within a stretch of many steps, the end of
    /// the previous stretch is shown.
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
