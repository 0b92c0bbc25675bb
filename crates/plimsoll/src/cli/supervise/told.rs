//! People are told what becomes of a supervised run: its start, what failed, what was changed against want of memory, its end.

use super::say;
use crate::cli::Failure;
use crate::cli::notify::{Recipients, say_goodbye};
use plimsoll_notify::{Kind, Message, Notifier};
use plimsoll_supervise::{Event, SUCCESS, Status, TOO_HOT};
use plimsoll_telemetry::now_s;
use std::collections::BTreeMap;

/// Kinds of ends that are want of memory.
const OF_MEMORY: [&str; 2] = ["card_memory", "host_memory"];

/// Says what happens on the terminal, and tells it to whom it concerns.
pub(super) struct Told {
    notifier: Option<Notifier>,
    narrator: Narrator,
}

/// What is known of a run, for messages.
#[derive(Default)]
struct Narrator {
    run: String,
    /// How each worker ended last.
    ended: BTreeMap<usize, String>,
}

impl Told {
    /// Errors: a secret is missing, or can't be used.
    pub(super) fn start(recipients: &Recipients) -> Result<Self, Failure> {
        Ok(Self { notifier: recipients.start()?, narrator: Narrator::default() })
    }

    /// A run of this name, which began before.
    pub(super) fn of_run(mut self, run: &str) -> Self {
        run.clone_into(&mut self.narrator.run);
        self
    }

    pub(super) fn take(&mut self, event: &Event) {
        say::tell(event);
        let message = self.narrator.take(event, now_s());
        if let (Some(notifier), Some(message)) = (&self.notifier, message) {
            notifier.tell(&message);
        }
    }

    /// Sends what waits, and says what did not arrive.
    pub(super) fn finish(self) {
        self.notifier.into_iter().for_each(say_goodbye);
    }
}

impl Narrator {
    /// The message that an event makes, if any.
    fn take(&mut self, event: &Event, time_s: f64) -> Option<Message> {
        let (kind, text) = match event {
            Event::RunStarted { name, command, workers } => {
                self.run.clone_from(name);
                let workers = if *workers > 1 { format!(", by {workers} workers") } else { String::new() };
                (Kind::Start, format!("Started: {}{workers}.", command.join(" ")))
            }
            Event::AttemptEnded { worker, kind, .. } => {
                self.ended.insert(*worker, kind.clone());
                // That the run ends for heat is told as such.
                if kind == SUCCESS || kind == TOO_HOT {
                    return None;
                }
                (Kind::Failure, sentence(event)?)
            }
            Event::Restarting { worker, notes, .. } => {
                let was_of_memory = self.ended.get(worker).is_some_and(|kind| OF_MEMORY.contains(&kind.as_str()));
                if !was_of_memory || notes.is_empty() {
                    return None;
                }
                (Kind::OutOfMemoryAverted, format!("Out of memory averted: {}.", notes.join("; ")))
            }
            Event::NotStarted { .. } | Event::Hung { .. } | Event::GaveUp { .. } | Event::RecordsLost { .. } => {
                (Kind::Failure, sentence(event)?)
            }
            Event::Heat { .. } | Event::SensorsSilent {} => (Kind::Heat, sentence(event)?),
            Event::RunEnded { status, code } => {
                let code = code.map_or("unknown".to_owned(), |code| code.to_string());
                let how = match status {
                    Status::Finished => "Finished".to_owned(),
                    Status::Failed => "Failed".to_owned(),
                    Status::Stopped => "Stopped, as it was asked to".to_owned(),
                    Status::TooHot => "Stopped for heat".to_owned(),
                    Status::TimeOver => "Its time was over".to_owned(),
                    Status::Unknown => "Ended, and nobody knows how".to_owned(),
                };
                (Kind::End, format!("{how}; exit code {code}."))
            }
            _ => return None,
        };
        Some(Message::new(kind, self.run.clone(), text, time_s))
    }
}

/// What is said of an event, as a sentence.
fn sentence(event: &Event) -> Option<String> {
    let line = say::line(event)?;
    let mut letters = line.chars();
    let first = letters.next()?.to_uppercase();
    Some(first.chain(letters).chain(['.']).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(kind: &str) -> Event {
        Event::AttemptEnded {
            worker: 0,
            attempt: 1,
            code: Some(1),
            signal: None,
            kind: kind.to_owned(),
            cause: String::new(),
            ran_s: 5.0,
            progress: None,
            oom_kills: 0,
        }
    }

    fn restarting(notes: &[&str]) -> Event {
        let notes = notes.iter().map(|note| (*note).to_owned()).collect();
        Event::Restarting { worker: 0, pause_s: 1.0, why: "it may help".to_owned(), notes }
    }

    #[test]
    fn a_repair_is_told_as_out_of_memory_averted_and_a_restart_alone_is_not() {
        let mut narrator = Narrator::default();
        let started = Event::RunStarted { name: "t-1".to_owned(), command: vec!["python".to_owned()], workers: 1 };
        assert_eq!(narrator.take(&started, 1.0).map(|m| (m.kind, m.run)), Some((Kind::Start, "t-1".to_owned())));
        let failed = narrator.take(&ended("card_memory"), 2.0).expect("it failed");
        assert_eq!((failed.kind, failed.text.as_str()), (Kind::Failure, "Ended after 5 s: exit code 1, card memory."));
        let averted = narrator.take(&restarting(&["batch 8 → 4 × 2"]), 3.0).expect("it is told");
        assert_eq!(averted.kind, Kind::OutOfMemoryAverted);
        assert_eq!(averted.text, "Out of memory averted: batch 8 → 4 × 2.");
        assert!(narrator.take(&restarting(&[]), 3.0).is_none());
        narrator.take(&ended("exception"), 4.0);
        assert!(narrator.take(&restarting(&["batch 8 → 4 × 2"]), 5.0).is_none(), "it failed by something else");
        assert!(narrator.take(&ended(SUCCESS), 6.0).is_none());
        let end = narrator.take(&Event::RunEnded { status: Status::Finished, code: Some(0) }, 7.0).expect("the end");
        assert_eq!((end.kind, end.text.as_str()), (Kind::End, "Finished; exit code 0."));
    }
}
