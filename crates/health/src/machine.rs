//! The machine: its disk and its memory.

use crate::card::Tell;
use crate::condition::{Condition, Rising, State};
use crate::finding::Finding;
use plimsoll_telemetry::SystemSample;
use plimsoll_units::{Bytes, Seconds};

/// What is left free of a disk that is not nearly full, where nothing is known of checkpoints.
const FREE: Bytes = Bytes::mib(256);

/// Time over which the speed is taken at which a disk fills, s, and how much of it must have been seen.
const FILLING_S: f64 = 1800.0;
const SEEN_S: f64 = 600.0;

/// A disk that will be full within so long is nearly full, s.
const SOON_S: f64 = 3600.0;

/// Percent of the time in which somebody waits for memory: too much, and little.
const WAITING: (f64, f64) = (10.0, 5.0);

/// Parts of memory that are available: too little, and enough.
const AVAILABLE: (f64, f64) = (0.03, 0.06);

/// Seconds for which things must be bad, and good.
const DISK_S: (f64, f64) = (0.0, 60.0);
const MEMORY_S: (f64, f64) = (20.0, 60.0);

/// What is known of the machine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Machine {
    full: (Condition, Option<Finding>),
    nearly: (Condition, Option<Finding>),
    taken: Rising,
    memory: (Condition, Option<Finding>),
}

impl Machine {
    /// A sample, what the next checkpoint takes, and whether the run takes the memory by plan.
    pub fn observe(
        &mut self,
        now_s: f64,
        sample: &SystemSample,
        checkpoint: Option<Bytes>,
        takes_memory: bool,
        tell: &mut Tell<'_>,
    ) {
        if let Some(free) = sample.disk_free {
            self.observe_disk(now_s, free, sample.disk_total, checkpoint, tell);
        }
        if let Some((state, found)) = memory(sample, takes_memory) {
            follow(&mut self.memory, now_s, state, found, MEMORY_S, tell);
        }
    }

    fn observe_disk(
        &mut self,
        now_s: f64,
        free: Bytes,
        total: Option<Bytes>,
        checkpoint: Option<Bytes>,
        tell: &mut Tell<'_>,
    ) {
        let taken = total.map(|total| total.saturating_sub(free).0);
        let filling = taken.and_then(|taken| self.taken.add(now_s, taken, FILLING_S));
        let needed = checkpoint.unwrap_or_default();
        let speed =
            filling.filter(|(more, over_s)| *more > 0 && *over_s >= SEEN_S).map(|(more, over_s)| more as f64 / over_s);
        let full_in_s =
            speed.map(|speed| free.saturating_sub(needed).as_f64() / speed).filter(|left_s| *left_s < SOON_S);
        if let Some(checkpoint) = checkpoint {
            let state = match free {
                little if little < checkpoint => State::Bad,
                enough if enough.as_f64() > 1.2 * checkpoint.as_f64() => State::Good,
                _ => State::Between,
            };
            follow(&mut self.full, now_s, state, Finding::DiskFull { free, checkpoint }, DISK_S, tell);
        }
        let least = checkpoint.map_or(FREE, |checkpoint| Bytes(checkpoint.0.saturating_add(checkpoint.0 / 4)));
        let is_little = free < least || full_in_s.is_some();
        let state = match is_little {
            true => State::Bad,
            false if free.as_f64() > 1.2 * least.as_f64() => State::Good,
            false => State::Between,
        };
        let found = Finding::DiskNearlyFull { free, checkpoint, full_in: full_in_s.map(Seconds) };
        // One that is too full is told as that.
        let state = if self.full.0.is_on() && state == State::Bad { State::Between } else { state };
        follow(&mut self.nearly, now_s, state, found, DISK_S, tell);
    }
}

/// Follows something that lasts; what is told is as it was when it began.
fn follow(
    (condition, told): &mut (Condition, Option<Finding>),
    now_s: f64,
    state: State,
    found: Finding,
    (bad_s, good_s): (f64, f64),
    tell: &mut Tell<'_>,
) {
    if !condition.is_on() {
        *told = Some(found);
    }
    if let (Some(change), Some(told)) = (condition.step(now_s, state, bad_s, good_s), told.clone()) {
        tell(told, change);
    }
}

/// How memory is, and what would be told; none where nothing is known.
fn memory(sample: &SystemSample, takes_memory: bool) -> Option<(State, Finding)> {
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
    let state = match (is_bad, is_good) {
        (true, _) => State::Bad,
        (false, true) => State::Good,
        (false, false) => State::Between,
    };
    let found = Finding::MemoryShort {
        waiting_percent: waiting,
        available: tightest.map(|(left, ..)| left),
        total: tightest.map(|(_, total, _)| total),
        is_group: tightest.is_some_and(|(_, _, is_group)| is_group),
    };
    Some((state, found))
}
