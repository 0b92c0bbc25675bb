//! A run in a list, and its comparison with the newest run of the same command. Not here: the list (`runs.rs`).

use plimsoll_registry::{Entry, Progress, RunKind, RunState};
use plimsoll_units::Bytes;
use serde::Serialize;
use std::fmt;

/// Words of a command that do not change what it computes, and whether a value follows.
const OF_EACH_START: [(&str, bool); 4] =
    [("--name", true), ("--resume", true), ("--detach", false), ("--detached", false)];

/// A run in a list.
#[derive(Debug, Clone)]
pub struct ListedRun {
    /// The contents of its folder.
    pub entry: Entry,
    /// Its state.
    pub state: RunState,
    /// Its progress.
    pub progress: Option<Progress>,
    /// Its speed.
    pub speed: Option<Speed>,
    /// The supervisor that was just started for it.
    pub adopted_by: Option<u32>,
    /// The ID of the user that owns its folder, if that is not this user.
    pub owner: Option<u32>,
}

impl ListedRun {
    /// The time that it has run, or ran.
    pub(crate) fn ran_s(&self) -> f64 {
        self.entry.ran_s(self.state)
    }

    pub(crate) fn state_in_words(&self) -> String {
        let code = self.entry.ended.as_ref().map(|ended| ended.code);
        let of_owner = self.owner.map_or(String::new(), |uid| format!(", of user {uid}"));
        let words = match (self.state, code) {
            (RunState::Running, _) if self.entry.workers.iter().any(|worker| worker.waits_for_memory) => {
                "waits for memory".to_owned()
            }
            (RunState::Running, _) => "running".to_owned(),
            (RunState::Orphaned, _) if self.adopted_by.is_some() => "orphaned, adopted now".to_owned(),
            (RunState::Orphaned, _) => "orphaned".to_owned(),
            (RunState::Ended, Some(Some(code))) => format!("ended ({code})"),
            (RunState::Ended, _) => "ended".to_owned(),
            (RunState::Gone, _) => "cut short".to_owned(),
            (RunState::Elsewhere, _) => format!("on {}", self.entry.machine.host),
        };
        words + &of_owner
    }
}

/// The speed of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Speed {
    /// The number of units per second.
    pub per_s: f64,
    /// `tokens`, or `steps` of a program of `plimsoll run`.
    pub unit: &'static str,
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.per_s < 10.0 { 2 } else { 0 };
        write!(f, "{:.digits$} {}/s", self.per_s, self.unit)
    }
}

/// A run divided by the newest run of the same command.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Compared {
    /// The name of the newest run.
    pub(crate) with: String,
    /// Quotient of the speeds.
    pub(crate) speed: Option<f64>,
    /// Quotient of the times.
    pub(crate) ran: Option<f64>,
    /// Quotient of the peaks of GPU memory.
    pub(crate) peak_memory: Option<f64>,
    /// Difference of the restarts.
    pub(crate) more_restarts: i64,
}

/// Compares a run with the newest run of its command; `None` for the newest one.
pub(crate) fn compared(run: &ListedRun, runs: &[ListedRun]) -> Option<Compared> {
    let command = computed(&run.entry);
    let same = runs.iter().filter(|other| computed(&other.entry) == command);
    let newest = same.max_by(|a, b| a.entry.started_s.total_cmp(&b.entry.started_s))?;
    if newest.entry.token == run.entry.token {
        return None;
    }
    let quotient = |own: f64, other: f64| (other > 0.0).then_some(own / other);
    let speeds = run.speed.zip(newest.speed).filter(|(own, other)| own.unit == other.unit);
    let bytes = |run: &ListedRun| peak(run).map_or(0.0, |peak| peak.0 as f64);
    Some(Compared {
        with: newest.entry.name(),
        speed: speeds.and_then(|(own, other)| quotient(own.per_s, other.per_s)),
        ran: quotient(run.ran_s(), newest.ran_s()),
        peak_memory: peak(run).and_then(|_| quotient(bytes(run), bytes(newest))),
        more_restarts: i64::from(run.entry.restarts) - i64::from(newest.entry.restarts),
    })
}

/// The highest peak of its GPUs.
pub(crate) fn peak(run: &ListedRun) -> Option<Bytes> {
    run.entry.cards.iter().map(|card| card.peak).max()
}

/// The words of a command that decide what it computes.
fn computed(entry: &Entry) -> Vec<&str> {
    // The path of this program does not change a run of `plimsoll train`; programs of `plimsoll run` have theirs.
    let own = usize::from(entry.kind == RunKind::Own);
    let mut words = entry.command.iter().skip(own).map(String::as_str);
    let mut computed = Vec::new();
    while let Some(word) = words.next() {
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        match OF_EACH_START.iter().find(|(flag, _)| own == 1 && *flag == name) {
            Some((_, has_value)) if *has_value && value.is_none() => drop(words.next()),
            Some(_) => {}
            None => computed.push(word),
        }
    }
    computed
}
