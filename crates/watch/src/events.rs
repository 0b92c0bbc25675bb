//! What happened, as a line for people. Steps are no line: they are curves.
//! Not here: what is told to people elsewhere, and when (`plimsoll-notify`).

use crate::text::{LINE, clean};
use plimsoll_telemetry::{Event, Level};
use plimsoll_units::{Bytes, Seconds, format_duration};
use serde::Serialize;
use std::collections::VecDeque;
use std::path::Path;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EventLine {
    /// When: seconds since 1970, UTC.
    pub time_s: f64,
    /// How much it matters.
    pub level: Level,
    /// What, in a line that is safe to show.
    pub text: String,
}

/// Lines that are kept, the newest.
const MOST: usize = 400;

/// Adds a line, and lets the oldest go where there are too many.
pub(crate) fn push(lines: &mut VecDeque<EventLine>, time_s: f64, (level, text): (Level, String)) {
    if lines.len() == MOST {
        lines.pop_front();
    }
    lines.push_back(EventLine { time_s, level, text: clean(&text, LINE) });
}

/// The name of a checkpoint.
fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// An event in words; none for a step.
pub fn words(event: &Event) -> Option<(Level, String)> {
    use Level::{Error, Info, Warn};
    Some(match event {
        Event::Step { .. } | Event::Energy(_) => return None,
        Event::RunStarted { model, first_step, planned_bytes, budget_bytes, .. } => {
            let (planned, budget) = (Bytes(*planned_bytes), Bytes(*budget_bytes));
            (Info, format!("started: {model} from step {first_step}, {planned} planned of {budget}"))
        }
        Event::Resumed { step, checkpoint } => (Info, format!("resumed after step {step} from {}", name(checkpoint))),
        Event::Branched { from_step, left_behind } => {
            (Info, format!("a branch begins after step {from_step}; {} checkpoints are left behind", left_behind.len()))
        }
        Event::CheckpointSkipped { checkpoint, reason } => {
            (Error, format!("{} is damaged and was skipped: {reason}", name(checkpoint)))
        }
        Event::Evaluated { step, loss, .. } => (Info, format!("step {step}: held-out loss {loss:.4}")),
        Event::UpdateSkipped { step, loss_scale, .. } => {
            (Warn, format!("step {step}: gradients overflowed, its update was left out; loss scale {loss_scale}"))
        }
        Event::CheckpointSaved { step, bytes, milliseconds, .. } => {
            (Info, format!("step {step}: checkpoint saved, {} in {:.1} s", Bytes(*bytes), milliseconds / 1e3))
        }
        Event::CheckpointFailed { step, reason } => (Error, format!("step {step}: checkpoint not saved: {reason}")),
        Event::EventsLost { events, reason } => (Error, format!("the journal lost {events} events: {reason}")),
        Event::Unsaved { step, saved_step, .. } => {
            let newest =
                saved_step.map_or("there is none".to_owned(), |saved| format!("the newest is of step {saved}"));
            (Error, format!("the state after step {step} is in no checkpoint; {newest}"))
        }
        Event::Undoing { from, to } => (Warn, format!("steps {} to {to} are made again", from.saturating_add(1))),
        Event::Diverged { step, .. } => (Error, format!("step {step}: loss or gradient is no number")),
        Event::Interrupted { step } => (Warn, format!("interrupted after step {step}")),
        Event::Heat { card, what } => (Warn, format!("{card}: {what}")),
        Event::Health { card, what, advice, level, .. } => {
            let of = card.as_ref().map_or(String::new(), |card| format!("{card}: "));
            let advice = advice.as_ref().map_or(String::new(), |advice| format!("; {advice}"));
            (*level, format!("{of}{what}{advice}"))
        }
        Event::OutOfMemoryAverted { what } => (Warn, format!("out of memory averted: {what}")),
        Event::Paused { step, .. } => (Info, format!("paused in step {step}")),
        Event::Unpaused { step, seconds, .. } => {
            (Info, format!("step {step} goes on after a pause of {}", format_duration(Seconds(*seconds))))
        }
        Event::Replanned { step, planned_bytes, budget_bytes, .. } => {
            let (planned, budget) = (Bytes(*planned_bytes), Bytes(*budget_bytes));
            (Info, format!("planned again after step {step}: {planned} of {budget}"))
        }
        Event::OrderRefused { reason, .. } => (Warn, format!("an order is refused: {reason}")),
        Event::StoppedForHeat { step } => (Error, format!("stopped for heat after step {step}")),
        Event::Finished { step, seconds } => {
            (Info, format!("finished after step {step}, in {}", format_duration(Seconds(*seconds))))
        }
    })
}
