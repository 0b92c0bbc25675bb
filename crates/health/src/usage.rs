//! How much of its time a card computes for the run, and what it waits for.

use crate::card::{Card, Tell};
use crate::condition::{Condition, State};
use crate::finding::{Cause, Finding};
use crate::watcher::{Facts, Settings};
use plimsoll_telemetry::CardSample;

/// Time over which use is taken, s.
const WINDOW_S: f64 = 60.0;

/// Percent of the time in which a card that has enough to do computes, and from where on it does again.
const BUSY: (f64, f64) = (80.0, 85.0);

/// Parts of the time in which a run waits for data: a card that starves, one that does not, and what explains a card that has
/// little to do.
const STARVED: (f64, f64) = (0.2, 0.1);
const DATA: f64 = 0.1;

/// A run that was held back for heat for this part of the time says nothing of its speed.
const HELD_BACK: f64 = 0.1;

/// How long a window must be bad to count, s: two of them in a row.
const BAD_S: f64 = WINDOW_S;

/// The names of others that are told.
const NAMES: usize = 4;

/// The time at hand, and what lasts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Usage {
    window: Option<Window>,
    starved: (Condition, f64),
    underused: (Condition, Option<(f64, Cause)>),
}

#[derive(Debug, Clone)]
struct Window {
    began_s: f64,
    facts: Facts,
    busy: f64,
    samples: u32,
    throttled: u32,
}

impl Usage {
    /// A sample of the run's card, and what the run says of itself.
    pub fn observe(
        &mut self,
        now_s: f64,
        of: (&Card, &CardSample),
        facts: &Facts,
        settings: &Settings,
        tell: &mut Tell<'_>,
    ) {
        let (card, sample) = of;
        let new = || Window { began_s: now_s, facts: *facts, busy: 0.0, samples: 0, throttled: 0 };
        let window = self.window.get_or_insert_with(new);
        if let Some(busy) = sample.busy_percent {
            window.busy += f64::from(busy);
            window.samples += 1;
        }
        window.throttled += u32::from(sample.throttling.is_some_and(plimsoll_telemetry::Throttling::is_trouble));
        let long_s = now_s - window.began_s;
        if long_s < WINDOW_S {
            return;
        }
        let Some(window) = self.window.take() else { return };
        let waited = (facts.waited_for_data_s - window.facts.waited_for_data_s).max(0.0) / long_s;
        let held_back = (facts.held_back_s - window.facts.held_back_s).max(0.0) / long_s;
        // Without a step, an evaluation or a checkpoint took the time.
        let is_telling = facts.steps > window.facts.steps && held_back < HELD_BACK;
        self.judge_data(now_s, waited, is_telling, tell);
        if window.samples > 0 {
            let busy = window.busy / f64::from(window.samples);
            let cause = cause(&window, waited, card, sample, settings);
            self.judge_busy(now_s, busy, cause, is_telling, tell);
        }
    }

    fn judge_data(&mut self, now_s: f64, waited: f64, is_telling: bool, tell: &mut Tell<'_>) {
        let state = match waited {
            _ if !is_telling => State::Between,
            much if much >= STARVED.0 => State::Bad,
            little if little < STARVED.1 => State::Good,
            _ => State::Between,
        };
        let (condition, percent) = &mut self.starved;
        *percent = if condition.is_on() { *percent } else { 100.0 * waited };
        if let Some(change) = condition.step(now_s, state, 0.0, 0.0) {
            tell(Finding::Starved { waited_percent: *percent }, change);
        }
    }

    fn judge_busy(&mut self, now_s: f64, busy: f64, cause: Cause, is_telling: bool, tell: &mut Tell<'_>) {
        let state = match busy {
            _ if !is_telling => State::Between,
            little if little < BUSY.0 => State::Bad,
            much if much >= BUSY.1 => State::Good,
            _ => State::Between,
        };
        let (condition, found) = &mut self.underused;
        if !condition.is_on() {
            *found = Some((busy, cause));
        }
        if let (Some(change), Some((busy_percent, cause))) = (condition.step(now_s, state, BAD_S, 0.0), found.clone()) {
            tell(Finding::Underused { busy_percent, cause }, change);
        }
    }
}

/// Why a card had little to do, the surest reason first.
fn cause(window: &Window, waited: f64, card: &Card, sample: &CardSample, settings: &Settings) -> Cause {
    let computing = sample.processes.iter().filter(|process| process.computes).collect::<Vec<_>>();
    // In a container, its own number is another outside: then one of them is this run.
    let is_own = |pid: u32| settings.own_pid == Some(pid);
    let others = match computing.iter().any(|process| is_own(process.pid)) {
        true => computing.iter().filter(|process| !is_own(process.pid)).collect::<Vec<_>>(),
        false => computing.iter().skip(1).collect(),
    };
    if waited >= DATA {
        Cause::Data
    } else if !others.is_empty() {
        let name = |name: Option<&str>, pid: u32| format!("{} ({pid})", name.unwrap_or("a process"));
        Cause::Others(others.iter().take(NAMES).map(|process| name(process.name.as_deref(), process.pid)).collect())
    } else if 2 * window.throttled > window.samples {
        Cause::Throttled
    } else if settings.offloads && card.has_narrow_link() {
        Cause::Pcie
    } else if settings.offloads {
        Cause::Host
    } else {
        Cause::SmallBatches
    }
}
