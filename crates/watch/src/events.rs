//! Events as one-line messages. Steps have no line: views show them as curves.
//! Not here: notifications to people, and when they are sent (`plimsoll-notify`).

use crate::text::{LINE, clean};
use plimsoll_telemetry::{Event, Level};
use plimsoll_units::{Bytes, Seconds, format_duration};
use serde::Serialize;
use std::collections::VecDeque;
use std::path::Path;

/// One line of the event list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EventLine {
    /// Unix time in seconds, UTC.
    pub time_s: f64,
    /// Severity.
    pub level: Level,
    /// The message, safe to show on one line.
    pub text: String,
}

/// Maximum number of lines; the oldest ones are dropped.
const MOST: usize = 400;

/// Adds a line, and drops the oldest one if there are too many.
pub(crate) fn push(lines: &mut VecDeque<EventLine>, time_s: f64, (level, text): (Level, String)) {
    if lines.len() == MOST {
        lines.pop_front();
    }
    lines.push_back(EventLine { time_s, level, text: clean(&text, LINE) });
}

/// The file name of a checkpoint.
fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The message for an event; `None` for a step.
pub fn words(event: &Event) -> Option<(Level, String)> {
    use Level::{Error, Info, Warn};
    Some(match event {
        Event::Step { .. } | Event::Energy(_) | Event::Rewards { held_out: false, .. } => return None,
        Event::Rewards { step, chosen, rejected, accuracy, .. } => {
            let reward = |reward: &Option<f64>, of| reward.map(|reward| format!("{reward:.3} {of}"));
            let order = accuracy.map(|part| format!("{:.0} % in order", 100.0 * part));
            let words = [reward(chosen, "chosen"), reward(rejected, "rejected"), order];
            let words = words.into_iter().flatten().collect::<Vec<_>>().join(", ");
            (Info, format!("step {step}: held-out rewards {words}"))
        }
        Event::RunStarted { model, first_step, planned_bytes, budget_bytes, .. } => {
            let (planned, budget) = (Bytes(*planned_bytes), Bytes(*budget_bytes));
            (Info, format!("started: {model} from step {first_step}, {planned} planned of {budget}"))
        }
        Event::Resumed { step, checkpoint } => (Info, format!("resumed after step {step} from {}", name(checkpoint))),
        Event::Branched { from_step, left_behind } => (
            Info,
            format!(
                "new branch after step {from_step}; {} later checkpoints belong to other branches",
                left_behind.len()
            ),
        ),
        Event::CheckpointSkipped { checkpoint, reason } => {
            (Error, format!("{} is damaged and was skipped: {reason}", name(checkpoint)))
        }
        Event::Evaluated { step, loss, .. } => (Info, format!("step {step}: held-out loss {loss:.4}")),
        Event::UpdateSkipped { step, loss_scale, .. } => {
            (Warn, format!("step {step}: gradients overflowed, update skipped; loss scale {loss_scale}"))
        }
        Event::CheckpointSaved { step, bytes, milliseconds, .. } => {
            (Info, format!("step {step}: checkpoint saved, {} in {:.1} s", Bytes(*bytes), milliseconds / 1e3))
        }
        Event::CheckpointFailed { step, reason } => (Error, format!("step {step}: checkpoint not saved: {reason}")),
        Event::EventsLost { events, reason } => (Error, format!("the journal lost {events} events: {reason}")),
        Event::Unsaved { step, saved_step, .. } => {
            let newest = saved_step.map_or("no checkpoint exists".to_owned(), |saved| {
                format!("the newest checkpoint is from step {saved}")
            });
            (Error, format!("the state after step {step} is not saved; {newest}"))
        }
        Event::Undoing { from, to } => (Warn, format!("repeating steps {} to {to}", from.saturating_add(1))),
        Event::Diverged { step, .. } => (Error, format!("step {step}: loss or gradient became NaN or infinite")),
        Event::Interrupted { step } => (Warn, format!("interrupted after step {step}")),
        Event::Heat { card, what } => (Warn, format!("{card}: {what}")),
        Event::Health { card, what, advice, level, .. } => {
            let of = card.as_ref().map_or(String::new(), |card| format!("{card}: "));
            let advice = advice.as_ref().map_or(String::new(), |advice| format!("; {advice}"));
            (*level, format!("{of}{what}{advice}"))
        }
        Event::MemoryPressure { what, .. } => (Warn, format!("memory pressure: {what}")),
        Event::SafeSettings { what } => (Warn, format!("safe settings: {what}")),
        Event::OutOfMemoryAverted { what } => (Warn, format!("out of memory averted: {what}")),
        Event::Paused { step, .. } => (Info, format!("paused in step {step}")),
        Event::Unpaused { step, seconds, .. } => {
            (Info, format!("step {step} continues after a pause of {}", format_duration(Seconds(*seconds))))
        }
        Event::Replanned { step, planned_bytes, budget_bytes, .. } => {
            let (planned, budget) = (Bytes(*planned_bytes), Bytes(*budget_bytes));
            (Info, format!("replanned after step {step}: {planned} of {budget}"))
        }
        Event::OrderRefused { reason, .. } => (Warn, format!("order rejected: {reason}")),
        Event::StoppedForHeat { step } => (Error, format!("stopped for heat after step {step}")),
        Event::Finished { step, seconds } => {
            (Info, format!("finished after step {step}, in {}", format_duration(Seconds(*seconds))))
        }
    })
}
