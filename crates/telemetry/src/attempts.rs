//! How the attempts of a run ended, from its journal: its start and each resume is an attempt. Not here: the attempts of
//! other programs, which their supervisor counts.

use crate::event::{Event, Level};
use crate::journal::for_each_record;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The attempts of a run, and the health findings during them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Attempts {
    /// All attempts.
    pub count: u64,
    /// The fraction that succeeded of those that finished or failed; `None` without any. An attempt that was stopped,
    /// by the user or for heat, is neither.
    pub success_rate: Option<f64>,
    /// Number of failed attempts by kind: `cut_short` (it has no end), `diverged`, `unsaved`.
    pub failures: BTreeMap<String, u64>,
    /// Number of health findings by kind: `throttled`, `disk`.
    pub health: BTreeMap<String, u64>,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq)]
enum AttemptEnd {
    Finished,
    Stopped,
    Failed(&'static str),
}

/// Counts attempts.
#[derive(Debug, Default)]
struct Counter {
    attempts: Attempts,
    finished: u64,
    is_open: bool,
    end: Option<AttemptEnd>,
    /// Whether the next start belongs to the same attempt: the run plans again, or waited for memory.
    continues: bool,
}

impl Attempts {
    /// Reads the attempts of a journal; none if it can't be read. `is_running`: the last attempt still runs, so that it
    /// has no end yet.
    pub fn read(journal: &Path, is_running: bool) -> Self {
        let mut counter = Counter::default();
        // What was read before an error counts.
        let _ = for_each_record(journal, |record| counter.take(&record.event));
        counter.finish(is_running)
    }

    /// In one line; `None` for a single attempt without failures and findings.
    pub fn in_words(&self) -> Option<String> {
        if self.count <= 1 && self.failures.is_empty() && self.health.is_empty() {
            return None;
        }
        let mut parts = vec![self.count.to_string()];
        parts.extend(
            self.success_rate.map(|rate| format!("{:.0} % of those that ended by themselves succeeded", rate * 100.0)),
        );
        let listed = |counts: &BTreeMap<String, u64>| {
            let counts = counts.iter().map(|(kind, count)| format!("{count} × {}", kind.replace('_', " ")));
            counts.collect::<Vec<_>>().join(", ")
        };
        for (what, counts) in [("failures", &self.failures), ("health findings", &self.health)] {
            parts.extend((!counts.is_empty()).then(|| format!("{what}: {}", listed(counts))));
        }
        Some(parts.join("; "))
    }
}

impl Counter {
    fn take(&mut self, event: &Event) {
        match event {
            Event::RunStarted { .. } if std::mem::take(&mut self.continues) && self.is_open => {}
            Event::RunStarted { .. } => {
                self.close();
                self.attempts.count += 1;
                self.is_open = true;
            }
            Event::Finished { .. } => self.end = Some(AttemptEnd::Finished),
            Event::Interrupted { .. } | Event::StoppedForHeat { .. } => self.end = Some(AttemptEnd::Stopped),
            Event::Diverged { .. } => self.end = Some(AttemptEnd::Failed("diverged")),
            Event::Unsaved { .. } => self.end = Some(AttemptEnd::Failed("unsaved")),
            Event::Undoing { .. } => self.end = None,
            Event::Replanned { .. } => self.continues = true,
            Event::MemoryPressure { waits, .. } => self.continues = *waits,
            // A finding at the level of information is the end of one.
            Event::Health { kind, level: Level::Warn | Level::Error, .. } => {
                *self.attempts.health.entry(kind.clone()).or_default() += 1;
            }
            _ => {}
        }
    }

    fn close(&mut self) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        match self.end.take().unwrap_or(AttemptEnd::Failed("cut_short")) {
            AttemptEnd::Finished => self.finished += 1,
            AttemptEnd::Stopped => {}
            AttemptEnd::Failed(kind) => *self.attempts.failures.entry(kind.to_owned()).or_default() += 1,
        }
    }

    fn finish(mut self, is_running: bool) -> Attempts {
        if !is_running {
            self.close();
        }
        let ended = self.finished + self.attempts.failures.values().sum::<u64>();
        self.attempts.success_rate = (ended > 0).then(|| self.finished as f64 / ended as f64);
        self.attempts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started() -> Event {
        let name = "a".to_owned();
        let (planned_bytes, budget_bytes, first_step) = (1, 2, 1);
        Event::RunStarted {
            model: name.clone(),
            name,
            parameters: 1,
            planned_bytes,
            budget_bytes,
            first_step,
            last_step: None,
        }
    }

    fn health(level: Level) -> Event {
        let text = "throttled".to_owned();
        Event::Health { card: None, kind: text.clone(), what: text, advice: None, level }
    }

    fn counted(events: &[Event], is_running: bool) -> Attempts {
        let mut counter = Counter::default();
        events.iter().for_each(|event| counter.take(event));
        counter.finish(is_running)
    }

    #[test]
    fn each_start_is_an_attempt_with_an_end() {
        let diverged = Event::Diverged { step: 3, loss: None, grad_norm: None, weights_whole: true, tensor: None };
        let replanned = Event::Replanned { step: 2, order: 1, planned_bytes: 1, budget_bytes: 1 };
        let events = [
            started(),
            health(Level::Warn),
            health(Level::Info),
            // It was killed.
            started(),
            replanned,
            started(),
            Event::Interrupted { step: 2 },
            started(),
            diverged.clone(),
            Event::Undoing { from: 0, to: 3 },
            diverged,
            started(),
            Event::Finished { step: 9, seconds: 1.0 },
        ];
        let found = counted(&events, false);
        assert_eq!(found.count, 4);
        assert_eq!(found.failures, [("cut_short".to_owned(), 1), ("diverged".to_owned(), 1)].into());
        assert_eq!((found.success_rate, found.health["throttled"]), (Some(1.0 / 3.0), 1));
        let words = found.in_words().expect("several attempts");
        assert_eq!(
            words,
            "4; 33 % of those that ended by themselves succeeded; failures: 1 × cut short, 1 × diverged; \
             health findings: 1 × throttled"
        );
        let undone = counted(&events[7..10], true);
        assert_eq!((undone.count, undone.success_rate, undone.in_words()), (1, None, None), "it still runs");
        assert_eq!(counted(&[], false), Attempts::default());
    }
}
