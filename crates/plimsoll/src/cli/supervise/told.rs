//! People are told what becomes of a supervised run: its start, what failed, what was changed against want of memory, its end.

use super::say;
use crate::cli::Failure;
use crate::cli::notify::{TellArgs, say_goodbye};
use plimsoll_notify::{Kind, Message, Notifier};
use plimsoll_supervise::{Event, STOPPED, SUCCESS, Status, TOO_HOT, program_name};
use plimsoll_telemetry::now_s;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// Kinds of ends that are want of memory.
const OF_MEMORY: [&str; 2] = ["card_memory", "host_memory"];

/// Says what happens on the terminal, and tells it to whom it concerns.
pub(super) struct Told {
    notifier: Option<Arc<Notifier>>,
    narrator: Narrator,
}

/// What is known of a run, for messages.
#[derive(Default)]
struct Narrator {
    run: String,
    workers: usize,
    /// Failures of workers that are not told yet.
    failed: BTreeMap<usize, Failed>,
}

/// What is known of a failure.
#[derive(Default)]
struct Failed {
    sentences: Vec<String>,
    is_of_memory: bool,
}

impl Told {
    /// Errors: a secret is missing, or can't be used.
    pub(super) fn start(args: &TellArgs) -> Result<Self, Failure> {
        Ok(Self { notifier: args.start()?.map(Arc::new), narrator: Narrator::default() })
    }

    /// A run of this name and with so many workers, which began before.
    pub(super) fn of_run(mut self, run: String, workers: usize) -> Self {
        (self.narrator.run, self.narrator.workers) = (run, workers);
        self
    }

    pub(super) fn take(&mut self, event: &Event) {
        say::tell(event);
        let message = self.narrator.take(event, now_s());
        if let (Some(notifier), Some(message)) = (&self.notifier, message) {
            notifier.send(&message);
        }
    }

    /// The run can't be started, so it has no end to tell of.
    pub(super) fn refuse(&self, program: &str, reason: &io::Error) {
        let program = program_name(&[program.to_owned()]);
        let text = format!("Failed: {program} can't be started: {reason}.");
        let message = Message::new(Kind::Failure, self.narrator.run.clone(), text, now_s());
        self.notifier.iter().for_each(|notifier| notifier.send(&message));
    }

    /// What sends messages, for a thread that tells where the run is.
    pub(super) fn notifier(&self) -> Option<Arc<Notifier>> {
        self.notifier.clone()
    }

    /// Sends what waits, and says what did not arrive. Once no other thread has the notifier.
    pub(super) fn finish(self) {
        self.notifier.and_then(Arc::into_inner).into_iter().for_each(say_goodbye);
    }
}

impl Narrator {
    /// The message that an event makes, if any. A failure is one message, together with what follows from it.
    fn take(&mut self, event: &Event, time_s: f64) -> Option<Message> {
        let (kind, text) = match event {
            Event::RunStarted { name, command, workers } => {
                self.run.clone_from(name);
                self.workers = *workers;
                let workers = if *workers > 1 { format!(", by {workers} workers") } else { String::new() };
                // Arguments may have tokens in them.
                (Kind::Start, format!("Started: {}{workers}.", program_name(command)))
            }
            Event::Hung { worker, .. } | Event::NotStarted { worker, .. } => return self.keep(*worker, event),
            Event::AttemptEnded { worker, kind, .. } => {
                if [SUCCESS, STOPPED, TOO_HOT].contains(&kind.as_str()) {
                    self.failed.remove(worker);
                    return None;
                }
                self.keep(*worker, event);
                self.failed.entry(*worker).or_default().is_of_memory = OF_MEMORY.contains(&kind.as_str());
                return None;
            }
            Event::Restarting { worker, notes, .. } => {
                self.keep(*worker, event);
                let mut failed = self.failed.remove(worker).unwrap_or_default();
                let is_averted = failed.is_of_memory && !notes.is_empty();
                failed.sentences.extend(is_averted.then(|| format!("Out of memory averted: {}.", notes.join("; "))));
                (if is_averted { Kind::OutOfMemoryAverted } else { Kind::Failure }, failed.sentences.join(" "))
            }
            Event::GaveUp { worker, .. } => {
                self.keep(*worker, event);
                // A run of one worker ends now, and its end says so.
                if self.workers <= 1 {
                    return None;
                }
                (Kind::Failure, self.failed.remove(worker).unwrap_or_default().sentences.join(" "))
            }
            Event::RecordsLost { .. } => (Kind::Failure, sentence(event)?),
            Event::Heat { .. } | Event::SensorsSilent {} => (Kind::Heat, sentence(event)?),
            Event::RunEnded { status, code } => {
                let code = code.map_or("unknown".to_owned(), |code| code.to_string());
                let (kind, how) = match status {
                    Status::Finished => (Kind::End, "Finished"),
                    Status::Failed => (Kind::Failure, "Failed"),
                    Status::Stopped => (Kind::Stopped, "Stopped, as it was asked to"),
                    Status::TooHot => (Kind::Heat, "Stopped for heat"),
                    Status::TimeOver => (Kind::Stopped, "Its time was over"),
                    Status::Unknown => (Kind::Failure, "Ended, and nobody knows how"),
                };
                let failed = std::mem::take(&mut self.failed).into_values().flat_map(|failed| failed.sentences);
                (kind, [format!("{how}; exit code {code}.")].into_iter().chain(failed).collect::<Vec<_>>().join(" "))
            }
            _ => return None,
        };
        Some(Message::new(kind, self.run.clone(), text, time_s))
    }

    /// Keeps what an event says of a worker's failure until it is known what follows.
    fn keep(&mut self, worker: usize, event: &Event) -> Option<Message> {
        self.failed.entry(worker).or_default().sentences.extend(sentence(event));
        None
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

    fn started(workers: usize) -> Narrator {
        let command = ["python", "-u", "src/train.py", "--token", "CANARY", "KEY=CANARY"].map(str::to_owned).to_vec();
        let mut narrator = Narrator::default();
        let message = narrator.take(&Event::RunStarted { name: "t-1".to_owned(), command, workers }, 1.0);
        let message = message.expect("a start is told");
        assert_eq!((message.kind, message.run.as_str()), (Kind::Start, "t-1"));
        assert!(message.text.starts_with("Started: train.py"), "{}", message.text);
        narrator
    }

    /// The kinds and texts of the messages that events make.
    fn told(narrator: &mut Narrator, events: &[Event]) -> Vec<(Kind, String)> {
        events
            .iter()
            .filter_map(|event| narrator.take(event, 2.0))
            .map(|message| (message.kind, message.text))
            .collect()
    }

    fn gave_up(worker: usize) -> Event {
        Event::GaveUp { worker, why: "it failed 3 times".to_owned() }
    }

    #[test]
    fn one_failure_is_one_message_that_says_what_follows() {
        let failed = Event::RunEnded { status: Status::Failed, code: Some(1) };
        let last = [ended("exception"), gave_up(0), failed.clone()];
        assert_eq!(
            told(&mut started(1), &last),
            [(
                Kind::Failure,
                "Failed; exit code 1. Ended after 5 s: exit code 1, exception. No further attempt: it failed 3 times."
                    .to_owned()
            )]
        );
        let hung = Event::Hung { worker: 0, idle_s: 60.0, stacks: None };
        assert_eq!(told(&mut started(1), &[hung, ended("exit_1"), restarting(&[])]), [(
            Kind::Failure,
            "No output and nothing computed for 1 min. Ended after 5 s: exit code 1. Next attempt in 1.0 s: it may help."
                .to_owned()
        )]);
        // Others of several workers go on.
        let messages = told(&mut started(2), &last);
        assert_eq!(messages.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [Kind::Failure, Kind::Failure]);
        assert_eq!(messages[1].1, "Failed; exit code 1.");
    }

    #[test]
    fn an_end_that_was_asked_for_is_no_failure() {
        for (status, kind) in [
            (Status::Stopped, Kind::Stopped),
            (Status::TimeOver, Kind::Stopped),
            (Status::TooHot, Kind::Heat),
            (Status::Unknown, Kind::Failure),
        ] {
            let of = if status == Status::TooHot { TOO_HOT } else { STOPPED };
            let messages = told(&mut started(1), &[ended(of), Event::RunEnded { status, code: Some(1) }]);
            assert_eq!(messages.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [kind], "{status:?}");
        }
    }

    #[test]
    fn a_repair_is_told_as_out_of_memory_averted() {
        let mut narrator = started(1);
        assert_eq!(
            told(&mut narrator, &[ended("card_memory"), restarting(&["batch 8 → 4 × 2"])]),
            [(
                Kind::OutOfMemoryAverted,
                "Ended after 5 s: exit code 1, card memory. Next attempt in 1.0 s: it may help. \
             Out of memory averted: batch 8 → 4 × 2."
                    .to_owned()
            )]
        );
        let other = told(&mut narrator, &[ended("exception"), restarting(&["batch 8 → 4 × 2"])]);
        assert_eq!(other[0].0, Kind::Failure, "it failed by something else");
        let end = told(&mut narrator, &[ended(SUCCESS), Event::RunEnded { status: Status::Finished, code: Some(0) }]);
        assert_eq!(end, [(Kind::End, "Finished; exit code 0.".to_owned())]);
    }
}
