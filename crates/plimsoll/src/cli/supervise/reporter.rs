//! Notifies users about a supervised run: its start, failures, changes against running out of memory, its end.

use super::say;
use crate::cli::Failure;
use crate::cli::notify::{TellArgs, finish_messages};
use plimsoll_notify::{Kind, Message, Notifier};
use plimsoll_registry::{STOPPED, SUCCESS, Status, SupervisorEvent, TOO_HOT, program_name};
use plimsoll_telemetry::now_s;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// Kinds of ends that are out-of-memory errors.
const OF_MEMORY: [&str; 2] = ["card_memory", "host_memory"];

/// Prints events to the terminal and sends them to the user's notifiers.
pub(super) struct EventReporter {
    notifier: Option<Arc<Notifier>>,
    narrator: Narrator,
}

/// State of a run that messages need.
#[derive(Default)]
struct Narrator {
    run: String,
    workers: usize,
    /// Failures of workers that were not sent yet.
    failed: BTreeMap<usize, Failed>,
}

/// A failure.
#[derive(Default)]
struct Failed {
    sentences: Vec<String>,
    is_of_memory: bool,
}

impl EventReporter {
    /// Starts the notifiers. Errors: a secret is missing or invalid.
    pub(super) fn start(args: &TellArgs) -> Result<Self, Failure> {
        Ok(Self { notifier: args.start()?.map(Arc::new), narrator: Narrator::default() })
    }

    /// Sets the name and the worker count of a run that was started earlier.
    pub(super) fn of_run(mut self, run: String, workers: usize) -> Self {
        (self.narrator.run, self.narrator.workers) = (run, workers);
        self
    }

    pub(super) fn take(&mut self, event: &SupervisorEvent) {
        say::tell(event);
        let message = self.narrator.take(event, now_s());
        if let (Some(notifier), Some(message)) = (&self.notifier, message) {
            notifier.send(&message);
        }
    }

    /// Reports that the run could not be started.
    pub(super) fn refuse(&self, program: &str, reason: &io::Error) {
        let program = program_name(&[program.to_owned()]);
        let text = format!("Failed: {program} can't be started: {reason}.");
        let message = Message::new(Kind::Failure, self.narrator.run.clone(), text, now_s());
        self.notifier.iter().for_each(|notifier| notifier.send(&message));
    }

    /// The notifier, for the thread that sends status messages.
    pub(super) fn notifier(&self) -> Option<Arc<Notifier>> {
        self.notifier.clone()
    }

    /// Sends queued messages and reports failures. Call once no other thread uses the notifier.
    pub(super) fn finish(self) {
        if let Some(notifier) = self.notifier.and_then(Arc::into_inner) {
            finish_messages(notifier, false);
        }
    }
}

impl Narrator {
    /// The message for an event, if any. A failure and the decision about it are one message.
    fn take(&mut self, event: &SupervisorEvent, time_s: f64) -> Option<Message> {
        let (kind, text) = match event {
            SupervisorEvent::RunStarted { name, command, workers } => {
                self.run.clone_from(name);
                self.workers = *workers;
                let workers = if *workers > 1 { format!(", by {workers} workers") } else { String::new() };
                // Arguments may contain tokens.
                (Kind::Start, format!("Started: {}{workers}.", program_name(command)))
            }
            SupervisorEvent::Hung { worker, .. } | SupervisorEvent::NotStarted { worker, .. } => {
                return self.keep(*worker, event);
            }
            SupervisorEvent::AttemptEnded { worker, kind, .. } => {
                if [SUCCESS, STOPPED, TOO_HOT].contains(&kind.as_str()) {
                    self.failed.remove(worker);
                    return None;
                }
                self.keep(*worker, event);
                self.failed.entry(*worker).or_default().is_of_memory = OF_MEMORY.contains(&kind.as_str());
                return None;
            }
            SupervisorEvent::Restarting { worker, notes, .. } => {
                self.keep(*worker, event);
                let mut failed = self.failed.remove(worker).unwrap_or_default();
                let is_averted = failed.is_of_memory && !notes.is_empty();
                failed.sentences.extend(is_averted.then(|| format!("Out of memory averted: {}.", notes.join("; "))));
                (if is_averted { Kind::OutOfMemoryAverted } else { Kind::Failure }, failed.sentences.join(" "))
            }
            SupervisorEvent::WaitingForMemory { worker, .. } => {
                // One message per failure: further waits follow the same one.
                self.failed.get(worker)?;
                self.keep(*worker, event);
                (Kind::Failure, self.failed.remove(worker).unwrap_or_default().sentences.join(" "))
            }
            SupervisorEvent::GaveUp { worker, .. } => {
                self.keep(*worker, event);
                // A run with one worker ends now, and the message about its end includes the failure.
                if self.workers <= 1 {
                    return None;
                }
                (Kind::Failure, self.failed.remove(worker).unwrap_or_default().sentences.join(" "))
            }
            SupervisorEvent::RecordsLost { .. } => (Kind::Failure, sentence(event)?),
            SupervisorEvent::Heat { .. } | SupervisorEvent::SensorsSilent {} => (Kind::Heat, sentence(event)?),
            SupervisorEvent::RunEnded { status, code } => {
                let code = code.map_or("unknown".to_owned(), |code| code.to_string());
                let (kind, how) = match status {
                    Status::Finished => (Kind::End, "Finished"),
                    Status::Failed => (Kind::Failure, "Failed"),
                    Status::Stopped => (Kind::Stopped, "Stopped on request"),
                    Status::TooHot => (Kind::Heat, "Stopped for heat"),
                    Status::TimeOver => (Kind::Stopped, "Reached its time limit"),
                    Status::Unknown => (Kind::Failure, "Ended in an unknown way"),
                };
                let failed = std::mem::take(&mut self.failed).into_values().flat_map(|failed| failed.sentences);
                (kind, [format!("{how}; exit code {code}.")].into_iter().chain(failed).collect::<Vec<_>>().join(" "))
            }
            _ => return None,
        };
        Some(Message::new(kind, self.run.clone(), text, time_s))
    }

    /// Stores the text for a worker's failure until the decision about it is known.
    fn keep(&mut self, worker: usize, event: &SupervisorEvent) -> Option<Message> {
        self.failed.entry(worker).or_default().sentences.extend(sentence(event));
        None
    }
}

/// The message for an event, as a sentence.
fn sentence(event: &SupervisorEvent) -> Option<String> {
    let line = say::line(event)?;
    let mut letters = line.chars();
    let first = letters.next()?.to_uppercase();
    Some(first.chain(letters).chain(['.']).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(kind: &str) -> SupervisorEvent {
        SupervisorEvent::AttemptEnded {
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

    fn restarting(notes: &[&str]) -> SupervisorEvent {
        let notes = notes.iter().map(|note| (*note).to_owned()).collect();
        SupervisorEvent::Restarting { worker: 0, pause_s: 1.0, why: "it may help".to_owned(), notes }
    }

    fn started(workers: usize) -> Narrator {
        let command = ["python", "-u", "src/train.py", "--token", "CANARY", "KEY=CANARY"].map(str::to_owned).to_vec();
        let mut narrator = Narrator::default();
        let message = narrator.take(&SupervisorEvent::RunStarted { name: "t-1".to_owned(), command, workers }, 1.0);
        let message = message.expect("a start is reported");
        assert_eq!((message.kind, message.run.as_str()), (Kind::Start, "t-1"));
        assert!(message.text.starts_with("Started: train.py"), "{}", message.text);
        narrator
    }

    /// The kinds and texts of the messages for events.
    fn messages(narrator: &mut Narrator, events: &[SupervisorEvent]) -> Vec<(Kind, String)> {
        events
            .iter()
            .filter_map(|event| narrator.take(event, 2.0))
            .map(|message| (message.kind, message.text))
            .collect()
    }

    fn gave_up(worker: usize) -> SupervisorEvent {
        SupervisorEvent::GaveUp { worker, why: "it failed 3 times".to_owned() }
    }

    #[test]
    fn a_failure_and_its_decision_are_one_message() {
        let failed = SupervisorEvent::RunEnded { status: Status::Failed, code: Some(1) };
        let last = [ended("exception"), gave_up(0), failed.clone()];
        assert_eq!(
            messages(&mut started(1), &last),
            [(
                Kind::Failure,
                "Failed; exit code 1. Ended after 5 s: exit code 1, exception. Not restarting: it failed 3 times."
                    .to_owned()
            )]
        );
        let hung = SupervisorEvent::Hung { worker: 0, idle_s: 60.0, stacks: None };
        assert_eq!(messages(&mut started(1), &[hung, ended("exit_1"), restarting(&[])]), [(
            Kind::Failure,
            "No output and nothing computed for 1 min. Ended after 5 s: exit code 1. Restarting in 1 s: it may help."
                .to_owned()
        )]);
        // Other workers continue.
        let messages = messages(&mut started(2), &last);
        assert_eq!(messages.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [Kind::Failure, Kind::Failure]);
        assert_eq!(messages[1].1, "Failed; exit code 1.");
    }

    #[test]
    fn a_requested_end_is_not_a_failure() {
        for (status, kind) in [
            (Status::Stopped, Kind::Stopped),
            (Status::TimeOver, Kind::Stopped),
            (Status::TooHot, Kind::Heat),
            (Status::Unknown, Kind::Failure),
        ] {
            let of = if status == Status::TooHot { TOO_HOT } else { STOPPED };
            let messages = messages(&mut started(1), &[ended(of), SupervisorEvent::RunEnded { status, code: Some(1) }]);
            assert_eq!(messages.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [kind], "{status:?}");
        }
    }

    #[test]
    fn a_repair_is_reported_as_out_of_memory_averted() {
        let mut narrator = started(1);
        assert_eq!(
            messages(&mut narrator, &[ended("card_memory"), restarting(&["batch 8 → 4 × 2"])]),
            [(
                Kind::OutOfMemoryAverted,
                "Ended after 5 s: exit code 1, card memory. Restarting in 1 s: it may help. \
             Out of memory averted: batch 8 → 4 × 2."
                    .to_owned()
            )]
        );
        let other = messages(&mut narrator, &[ended("exception"), restarting(&["batch 8 → 4 × 2"])]);
        assert_eq!(other[0].0, Kind::Failure, "it failed for another reason");
        let end = messages(
            &mut narrator,
            &[ended(SUCCESS), SupervisorEvent::RunEnded { status: Status::Finished, code: Some(0) }],
        );
        assert_eq!(end, [(Kind::End, "Finished; exit code 0.".to_owned())]);
    }
}
