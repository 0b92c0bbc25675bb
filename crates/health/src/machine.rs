//! The machine: its disk and its memory.

use crate::card::Emit;
use crate::condition::{Condition, Rising, Verdict};
use crate::finding::Finding;
use plimsoll_telemetry::SystemSample;
use plimsoll_units::{Bytes, Seconds};

/// Free space below which a disk is nearly full, if the size of checkpoints is unknown.
const FREE: Bytes = Bytes::mib(256);

/// Window for the rate at which a disk fills, and the minimum time that must be covered, s.
const FILLING_S: f64 = 1800.0;
const SEEN_S: f64 = 600.0;

/// A disk is nearly full if it will be full within this time, s.
const SOON_S: f64 = 3600.0;

/// Percent of the time that processes wait for memory: the value that is bad, and the one below which it is good.
const WAITING: (f64, f64) = (10.0, 5.0);

/// Fraction of memory available: the value below which it is bad, and the one from which it is good.
const AVAILABLE: (f64, f64) = (0.03, 0.06);

/// How long a condition must be bad to begin, and good to end, s.
const DISK_S: (f64, f64) = (0.0, 60.0);
const MEMORY_S: (f64, f64) = (20.0, 60.0);

/// The state of the machine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Machine {
    full: (Condition, Option<Finding>),
    nearly: (Condition, Option<Finding>),
    taken: Rising,
    memory: (Condition, Option<Finding>),
}

impl Machine {
    /// Processes a sample. `checkpoint`: size of the next checkpoint; `takes_memory`: whether the run's plan uses the
    /// machine's memory.
    pub fn observe(
        &mut self,
        now_s: f64,
        sample: &SystemSample,
        checkpoint: Option<Bytes>,
        takes_memory: bool,
        emit: &mut Emit<'_>,
    ) {
        if let Some(free) = sample.disk_free {
            self.observe_disk(now_s, free, sample.disk_total, checkpoint, emit);
        }
        if let Some((verdict, found)) = memory(sample, takes_memory) {
            follow(&mut self.memory, now_s, verdict, found, MEMORY_S, emit);
        }
    }

    fn observe_disk(
        &mut self,
        now_s: f64,
        free: Bytes,
        total: Option<Bytes>,
        checkpoint: Option<Bytes>,
        emit: &mut Emit<'_>,
    ) {
        let taken = total.map(|total| total.saturating_sub(free).0);
        let filling = taken.and_then(|taken| self.taken.add(now_s, taken, FILLING_S));
        let needed = checkpoint.unwrap_or_default();
        let speed =
            filling.filter(|(more, over_s)| *more > 0 && *over_s >= SEEN_S).map(|(more, over_s)| more as f64 / over_s);
        let full_in_s =
            speed.map(|speed| free.saturating_sub(needed).as_f64() / speed).filter(|left_s| *left_s < SOON_S);
        if let Some(checkpoint) = checkpoint {
            let verdict = match free {
                little if little < checkpoint => Verdict::Bad,
                enough if enough.as_f64() > 1.2 * checkpoint.as_f64() => Verdict::Good,
                _ => Verdict::Unclear,
            };
            follow(&mut self.full, now_s, verdict, Finding::DiskFull { free, checkpoint }, DISK_S, emit);
        }
        let least = checkpoint.map_or(FREE, |checkpoint| Bytes(checkpoint.0.saturating_add(checkpoint.0 / 4)));
        let is_little = free < least || full_in_s.is_some();
        let verdict = match is_little {
            true => Verdict::Bad,
            false if free.as_f64() > 1.2 * least.as_f64() => Verdict::Good,
            false => Verdict::Unclear,
        };
        let found = Finding::DiskNearlyFull { free, checkpoint, full_in: full_in_s.map(Seconds) };
        // A disk that is reported as full is not also reported as nearly full.
        let verdict = if self.full.0.is_on() && verdict == Verdict::Bad { Verdict::Unclear } else { verdict };
        follow(&mut self.nearly, now_s, verdict, found, DISK_S, emit);
    }
}

/// Updates an episode. The end is reported with the finding of its beginning.
fn follow(
    (condition, reported): &mut (Condition, Option<Finding>),
    now_s: f64,
    verdict: Verdict,
    found: Finding,
    (bad_s, good_s): (f64, f64),
    emit: &mut Emit<'_>,
) {
    if !condition.is_on() {
        *reported = Some(found);
    }
    if let (Some(change), Some(reported)) = (condition.step(now_s, verdict, bad_s, good_s), reported.clone()) {
        emit(reported, change);
    }
}

/// The verdict on memory, and its finding; `None` if no reading is available.
fn memory(sample: &SystemSample, takes_memory: bool) -> Option<(Verdict, Finding)> {
    let group =
        sample.group_limit.zip(sample.group_used).map(|(limit, used)| (limit.saturating_sub(used), limit, true));
    let machine = sample.memory_available.zip(sample.memory_total).map(|(left, total)| (left, total, false));
    let part = |(left, total, _): &(Bytes, Bytes, bool)| left.as_f64() / total.as_f64().max(1.0);
    let limits = if takes_memory { [None, None] } else { [group, machine] };
    let tightest = limits.into_iter().flatten().min_by(|a, b| part(a).total_cmp(&part(b)));
    let waiting = sample.memory_pressure_percent;
    if tightest.is_none() && waiting.is_none() {
        return None;
    }
    let left = tightest.as_ref().map(part);
    let is_bad = left.is_some_and(|left| left < AVAILABLE.0) || waiting.is_some_and(|percent| percent >= WAITING.0);
    let is_good = left.is_none_or(|left| left >= AVAILABLE.1) && waiting.is_none_or(|percent| percent < WAITING.1);
    let verdict = match (is_bad, is_good) {
        (true, _) => Verdict::Bad,
        (false, true) => Verdict::Good,
        (false, false) => Verdict::Unclear,
    };
    let found = Finding::MemoryShort {
        waiting_percent: waiting,
        available: tightest.map(|(left, ..)| left),
        total: tightest.map(|(_, total, _)| total),
        is_group: tightest.is_some_and(|(_, _, is_group)| is_group),
    };
    Some((verdict, found))
}
