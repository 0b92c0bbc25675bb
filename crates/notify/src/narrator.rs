//! Turns a run's events into messages. It tracks the run's latest state, so that every message includes it.

use crate::loss_points::LossPoints;
use crate::message::{Card, Kind, Message};
use crate::notifier::Notifier;
use plimsoll_telemetry::{EnergyUse, Event, Level, Sink, now_s};
use plimsoll_units::{Bytes, Seconds};

/// Weight of the last step in the smoothed duration of a step.
const SMOOTHING: f64 = 0.05;

/// Tracks the state of a run for its messages.
#[derive(Debug, Clone)]
pub struct Narrator {
    run: String,
    has_started: bool,
    step: Option<u64>,
    last_step: Option<u64>,
    loss: Option<f64>,
    tokens_per_s: Option<f64>,
    step_s: Option<f64>,
    memory: Option<Bytes>,
    held_out: Option<(u64, f64)>,
    resumed: Option<u64>,
    cards: Vec<Card>,
    energy: Option<EnergyUse>,
    losses: LossPoints,
    unsaved: Option<Unsaved>,
}

/// A checkpoint could not be written, and none was saved after it.
#[derive(Debug, Clone)]
enum Unsaved {
    /// Reported with the next step, or with the end of the run if that comes first, so that a failure gives one
    /// message.
    Pending(String),
    Reported,
}

/// Advice for a file that cannot be written.
const IS_FULL: &str = "Is the disk full?";

impl Narrator {
    /// For a run with this name; its first event may change the name.
    pub fn new(run: impl Into<String>) -> Self {
        Self {
            run: run.into(),
            has_started: false,
            step: None,
            last_step: None,
            loss: None,
            tokens_per_s: None,
            step_s: None,
            memory: None,
            held_out: None,
            resumed: None,
            cards: vec![],
            energy: None,
            losses: LossPoints::default(),
            unsaved: None,
        }
    }

    /// Sets the current readings of the cards.
    pub fn set_cards(&mut self, cards: Vec<Card>) {
        self.cards = cards;
    }

    /// A message of any kind, with the current state of the run.
    pub fn message(&self, kind: Kind, text: impl Into<String>, advice: Option<String>, time_s: f64) -> Message {
        let left = self.last_step.zip(self.step).map(|(last, step)| last.saturating_sub(step));
        let time_left = left.zip(self.step_s).map(|(steps, step_s)| Seconds(steps as f64 * step_s));
        Message {
            advice,
            step: self.step,
            last_step: self.last_step,
            loss: self.loss,
            tokens_per_s: self.tokens_per_s,
            time_left: time_left.filter(|_| !matches!(kind, Kind::End | Kind::Stopped)),
            memory: self.memory,
            cards: self.cards.clone(),
            energy: self.energy.clone(),
            curve: self.losses.points(),
            ..Message::new(kind, self.run.clone(), text, time_s)
        }
    }

    /// Processes an event, and returns its message, if any. Progress gives a message only if `is_due` returns true for
    /// its step.
    pub fn take(&mut self, event: &Event, time_s: f64, is_due: impl Fn(u64) -> bool) -> Option<Message> {
        let (kind, text, advice) = match event {
            Event::RunStarted { name, model, parameters, planned_bytes, budget_bytes, first_step, last_step } => {
                self.run.clone_from(name);
                self.has_started = true;
                self.last_step = *last_step;
                self.step = first_step.checked_sub(1).filter(|step| *step > 0);
                let (planned, budget) = (Bytes(*planned_bytes), Bytes(*budget_bytes));
                let how = if self.resumed.is_some() || *first_step > 1 { "Resumed" } else { "Started" };
                let text = format!("{how}: {model}, {parameters} parameters, {planned} planned of {budget}.");
                (Kind::Start, text, None)
            }
            Event::Resumed { step, .. } => {
                self.resumed = Some(*step);
                return None;
            }
            Event::Step { step, loss, tokens_per_s, step_ms, memory_bytes, .. } => {
                self.step = Some(*step);
                self.loss = Some(*loss);
                self.tokens_per_s = Some(*tokens_per_s);
                self.memory = Some(Bytes(*memory_bytes));
                let now = step_ms / 1000.0;
                self.step_s = Some(self.step_s.map_or(now, |before| before + SMOOTHING * (now - before)));
                self.losses.add(*step, *loss);
                if let Some(Unsaved::Pending(text)) = &self.unsaved {
                    let text = text.clone();
                    self.unsaved = Some(Unsaved::Reported);
                    let advice = Some(IS_FULL.to_owned());
                    return Some(self.message(Kind::Failure, format!("{text} Training continues."), advice, time_s));
                }
                if !is_due(*step) {
                    return None;
                }
                let held_out = self.held_out.map(|(step, loss)| format!("Held-out loss {loss:.4} after step {step}."));
                (Kind::Progress, held_out.unwrap_or_default(), None)
            }
            Event::Evaluated { step, loss, .. } => {
                self.held_out = Some((*step, *loss));
                return None;
            }
            Event::CheckpointSaved { checkpoint, bytes, .. } => {
                self.unsaved = None;
                (Kind::Checkpoint, format!("{}, {}.", checkpoint.display(), Bytes(*bytes)), None)
            }
            Event::CheckpointFailed { step, reason } => {
                // Later checkpoints fail for the same reason, until one is saved.
                if self.unsaved.is_none() {
                    self.unsaved =
                        Some(Unsaved::Pending(format!("Cannot write the checkpoint of step {step}: {reason}.")));
                }
                return None;
            }
            Event::CheckpointSkipped { checkpoint, reason } => {
                (Kind::Failure, format!("{} is damaged and was skipped: {reason}", checkpoint.display()), None)
            }
            Event::EventsLost { events, reason } => {
                let text = format!("The journal is missing {events} events: {reason}");
                (Kind::Failure, text, Some(IS_FULL.to_owned()))
            }
            Event::Unsaved { step, saved_step, .. } => {
                let newest = saved_step.map_or("no checkpoint exists".to_owned(), |saved| {
                    format!("the newest checkpoint is from step {saved}")
                });
                let text = format!("The run ended, and its state after step {step} is not saved; {newest}.");
                match self.unsaved.take() {
                    Some(Unsaved::Pending(why)) => (Kind::Failure, format!("{text} {why}"), Some(IS_FULL.to_owned())),
                    Some(Unsaved::Reported) | None => (Kind::Failure, text, None),
                }
            }
            Event::Diverged { step, .. } => {
                (Kind::Failure, format!("Loss or gradient became NaN or infinite at step {step}."), None)
            }
            Event::Undoing { from, .. } => {
                self.losses.rewind(*from);
                // The divergence that follows gives its own message.
                return None;
            }
            Event::Interrupted { step } => {
                self.step = Some(*step);
                (Kind::Stopped, format!("Stopped after step {step} on request; it can be resumed."), None)
            }
            Event::Heat { card, what } => (Kind::Heat, format!("{card}: {what}."), None),
            Event::Paused { step, .. } => (Kind::Progress, format!("Paused in step {step} on request."), None),
            Event::Unpaused { step, seconds, .. } => {
                let time = plimsoll_units::format_duration(Seconds(*seconds));
                (Kind::Progress, format!("Continues in step {step} after a pause of {time}."), None)
            }
            Event::Replanned { step, planned_bytes, budget_bytes, .. } => {
                let (planned, budget) = (Bytes(*planned_bytes), Bytes(*budget_bytes));
                (Kind::Progress, format!("Replanned after step {step}: {planned} of {budget}."), None)
            }
            Event::OrderRefused { reason, .. } => (Kind::Progress, format!("Order rejected: {reason}"), None),
            Event::Health { card, what, advice, level, .. } => {
                let of = card.as_ref().map_or(String::new(), |card| format!("{card}: "));
                let kind = if *level == Level::Error { Kind::Failure } else { Kind::Health };
                (kind, format!("{of}{what}."), advice.clone())
            }
            Event::MemoryPressure { what, .. } => (Kind::Progress, format!("Memory pressure: {what}."), None),
            Event::SafeSettings { what } => (Kind::Progress, format!("Safe settings: {what}."), None),
            Event::OutOfMemoryAverted { what } => {
                (Kind::OutOfMemoryAverted, format!("Out of memory averted: {what}."), None)
            }
            Event::Energy(energy) => {
                self.energy = Some(energy.clone());
                return None;
            }
            Event::StoppedForHeat { step } => {
                self.step = Some(*step);
                let text = format!("Stopped for heat after step {step}; it is saved and can be resumed.");
                (Kind::Heat, text, Some("Check fans and airflow.".to_owned()))
            }
            Event::Finished { step, seconds } => {
                self.step = Some(*step);
                let time = plimsoll_units::format_duration(Seconds(*seconds));
                (Kind::End, format!("Finished after step {step}, in {time}."), None)
            }
            Event::Branched { .. } | Event::UpdateSkipped { .. } | Event::Rewards { .. } => return None,
        };
        Some(self.message(kind, text, advice, time_s))
    }
}

/// An event sink that sends notifications.
#[derive(Debug)]
pub struct NotifySink<'a> {
    notifier: &'a Notifier,
    /// The state of the run, for messages that do not come from events.
    pub narrator: Narrator,
}

impl<'a> NotifySink<'a> {
    /// For a run with this name.
    pub fn new(notifier: &'a Notifier, run: impl Into<String>) -> Self {
        Self { notifier, narrator: Narrator::new(run) }
    }

    /// Reports that the run ended with an error, if its start was reported.
    pub fn fail(&mut self, error: &str) {
        if self.narrator.has_started {
            self.notifier.send(&self.narrator.message(Kind::Failure, format!("The run ended: {error}"), None, now_s()));
        }
    }
}

impl Sink for NotifySink<'_> {
    fn take(&mut self, event: &Event) {
        let notifier = self.notifier;
        if let Some(message) = self.narrator.take(event, now_s(), |step| notifier.is_progress_due(step)) {
            notifier.send(&message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64, loss: f64) -> Event {
        Event::Step {
            step,
            loss,
            learning_rate: 1e-3,
            grad_norm: 1.0,
            step_ms: 500.0,
            tokens_per_s: 2048.0,
            memory_bytes: 1 << 30,
        }
    }

    /// A full disk makes every checkpoint fail.
    #[test]
    fn repeated_checkpoint_failures_give_one_message() {
        let failed = |step| Event::CheckpointFailed { step, reason: "no space".to_owned() };
        let saved = || Event::CheckpointSaved { step: 4, checkpoint: "step-4".into(), bytes: 1, milliseconds: 1.0 };
        let unsaved = Event::Unsaved { step: 5, saved_step: Some(4), checkpoint: None };
        let sent = |events: &[Event]| {
            let mut narrator = Narrator::new("run");
            let messages = events.iter().filter_map(|event| narrator.take(event, 1.0, |_| false));
            messages.map(|message| message.text).collect::<Vec<_>>()
        };
        let of_first = "Cannot write the checkpoint of step 1: no space.";
        let continues = format!("{of_first} Training continues.");
        let end = "The run ended, and its state after step 5 is not saved; the newest checkpoint is from step 4.";
        let steps = [failed(1), step(2, 1.0), failed(2), step(3, 1.0)];
        assert_eq!(sent(&steps), std::slice::from_ref(&continues));
        assert_eq!(sent(&[&steps[..], std::slice::from_ref(&unsaved)].concat()), [continues, end.to_owned()]);
        assert_eq!(sent(&[failed(1), unsaved]), [format!("{end} {of_first}")]);
        assert_eq!(
            sent(&[&steps[..], &[saved()], &steps[..]].concat()).len(),
            3,
            "a second failure is a second message"
        );
    }

    #[test]
    fn events_give_messages() {
        let mut narrator = Narrator::new("?");
        let started = Event::RunStarted {
            name: "nano-1".to_owned(),
            model: "nano".to_owned(),
            parameters: 1_000,
            planned_bytes: 1 << 20,
            budget_bytes: 1 << 21,
            first_step: 1,
            last_step: Some(10),
        };
        let start = narrator.take(&started, 1.0, |_| false).unwrap();
        assert_eq!((start.kind, start.run.as_str(), start.step), (Kind::Start, "nano-1", None));
        assert_eq!(start.text, "Started: nano, 1000 parameters, 1.00 MiB planned of 2.00 MiB.");
        assert!(narrator.take(&step(1, 5.0), 2.0, |_| false).is_none());
        assert!(
            narrator
                .take(&Event::Evaluated { step: 1, loss: 4.5, average_loss: None, tokens: 9 }, 2.0, |_| true)
                .is_none()
        );
        let sent = narrator.take(&step(2, 4.0), 3.0, |step| step % 2 == 0).unwrap();
        assert_eq!((sent.kind, sent.step, sent.last_step, sent.loss), (Kind::Progress, Some(2), Some(10), Some(4.0)));
        assert_eq!((sent.time_left, sent.memory), (Some(Seconds(4.0)), Some(Bytes(1 << 30))));
        assert_eq!((sent.text.as_str(), sent.curve.len()), ("Held-out loss 4.5000 after step 1.", 2));
        let heat = narrator.message(Kind::Heat, "hot", Some("fans".to_owned()), 4.0);
        assert_eq!((heat.step, heat.advice.as_deref()), (Some(2), Some("fans")));
        assert!(narrator.take(&Event::Undoing { from: 1, to: 2 }, 5.0, |_| false).is_none());
        let what = "slowed to 80 % of the time".to_owned();
        let hot = narrator.take(&Event::Heat { card: "GPU 0".to_owned(), what }, 5.5, |_| false).unwrap();
        assert_eq!((hot.kind, hot.text.as_str()), (Kind::Heat, "GPU 0: slowed to 80 % of the time."));
        let health = |level| Event::Health {
            card: Some("GPU 0".to_owned()),
            kind: "xid".to_owned(),
            what: "Xid 79: the GPU fell off the bus".to_owned(),
            advice: Some("reboot".to_owned()),
            level,
        };
        let bad = narrator.take(&health(Level::Error), 5.6, |_| false).unwrap();
        assert_eq!((bad.kind, bad.text.as_str()), (Kind::Failure, "GPU 0: Xid 79: the GPU fell off the bus."));
        assert_eq!(bad.advice.as_deref(), Some("reboot"));
        assert_eq!(narrator.take(&health(Level::Info), 5.6, |_| false).unwrap().kind, Kind::Health);
        let by = plimsoll_telemetry::EnergySource::Power;
        let used = EnergyUse { energy_j: 7.0, by, missed_s: 0.0, cost: None, currency: None };
        assert!(narrator.take(&Event::Energy(used.clone()), 5.7, |_| true).is_none());
        let averted = Event::OutOfMemoryAverted { what: "a micro-batch of 4".to_owned() };
        let averted = narrator.take(&averted, 5.8, |_| false).unwrap();
        assert_eq!((averted.kind, averted.energy), (Kind::OutOfMemoryAverted, Some(used)));
        assert_eq!(averted.text, "Out of memory averted: a micro-batch of 4.");
        let end = narrator.take(&Event::Finished { step: 10, seconds: 90.0 }, 6.0, |_| false).unwrap();
        assert_eq!((end.kind, end.step, end.time_left, end.curve.len()), (Kind::End, Some(10), None, 1));
        assert_eq!(end.text, "Finished after step 10, in 1 min 30 s.");
    }
}
