//! How much of the time a card computes for the run, and why it waits.

use crate::card::{Card, Emit};
use crate::condition::{Condition, Verdict};
use crate::finding::{Cause, Finding};
use crate::run::{Facts, Settings};
use plimsoll_telemetry::CardSample;

/// Window over which utilization is measured, s.
const WINDOW_S: f64 = 60.0;

/// Utilization below which a card is not fully used, and from which it is again, percent.
const BUSY: (f64, f64) = (80.0, 85.0);

/// Fraction of the time that a run waits for data: from which a card starves, below which it no longer does, and from
/// which this explains a low utilization.
const STARVED: (f64, f64) = (0.2, 0.1);
const DATA: f64 = 0.1;

/// A run that was slowed for heat for more than this fraction of the time is not judged.
const HELD_BACK: f64 = 0.1;

/// How long utilization must be low, s: two windows in a row.
const BAD_S: f64 = WINDOW_S;

/// Maximum number of other processes named in a finding.
const NAMES: usize = 4;

/// The current window, and ongoing episodes.
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
    /// Processes a sample of the run's card, and the run's counters.
    pub fn observe(
        &mut self,
        now_s: f64,
        of: (&Card, &CardSample),
        facts: &Facts,
        settings: &Settings,
        emit: &mut Emit<'_>,
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
        // A window without a step was spent on an evaluation or a checkpoint.
        let is_representative = facts.steps > window.facts.steps && held_back < HELD_BACK;
        self.judge_data(now_s, waited, is_representative, emit);
        if window.samples > 0 {
            let busy = window.busy / f64::from(window.samples);
            let cause = cause(&window, waited, card, sample, settings);
            self.judge_utilization(now_s, busy, cause, is_representative, emit);
        }
    }

    fn judge_data(&mut self, now_s: f64, waited: f64, is_representative: bool, emit: &mut Emit<'_>) {
        let verdict = match waited {
            _ if !is_representative => Verdict::Unclear,
            much if much >= STARVED.0 => Verdict::Bad,
            little if little < STARVED.1 => Verdict::Good,
            _ => Verdict::Unclear,
        };
        let (condition, percent) = &mut self.starved;
        *percent = if condition.is_on() { *percent } else { 100.0 * waited };
        if let Some(change) = condition.step(now_s, verdict, 0.0, 0.0) {
            emit(Finding::Starved { waited_percent: *percent }, change);
        }
    }

    fn judge_utilization(&mut self, now_s: f64, busy: f64, cause: Cause, is_representative: bool, emit: &mut Emit<'_>) {
        let verdict = match busy {
            _ if !is_representative => Verdict::Unclear,
            little if little < BUSY.0 => Verdict::Bad,
            much if much >= BUSY.1 => Verdict::Good,
            _ => Verdict::Unclear,
        };
        let (condition, found) = &mut self.underused;
        if !condition.is_on() {
            *found = Some((busy, cause));
        }
        if let (Some(change), Some((busy_percent, cause))) = (condition.step(now_s, verdict, BAD_S, 0.0), found.clone())
        {
            emit(Finding::Underused { busy_percent, cause }, change);
        }
    }
}

/// The most likely cause of low utilization, the most certain one first.
fn cause(window: &Window, waited: f64, card: &Card, sample: &CardSample, settings: &Settings) -> Cause {
    let computing = sample.processes.iter().filter(|process| process.computes).collect::<Vec<_>>();
    // In a container, the run has another process ID outside. If its own ID is not listed, the first process
    // is taken to be the run.
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
