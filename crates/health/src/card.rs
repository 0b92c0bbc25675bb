//! One card: its errors, fans, PCIe link, and whether it responds.

use crate::condition::{Condition, Rising, Transition, Verdict};
use crate::finding::Finding;
use plimsoll_telemetry::CardSample;
use plimsoll_units::Seconds;
use std::collections::BTreeMap;

/// Number of corrected errors within an hour that is unusual: working memory has a few in its lifetime.
const CORRECTED: u64 = 10;
const HOUR_S: f64 = 3600.0;

/// Number of PCIe replays within ten minutes that is unusual.
const REPLAYS: u64 = 100;
const REPLAYS_S: f64 = 600.0;

/// Fan speed at which the fans have no reserve, and the speed below which they have one again, percent.
const FANS: (u32, u32) = (98, 90);

/// Load from which a card runs its link at full speed, percent. Idle cards lower the link speed to save power.
const BUSY: u32 = 50;

/// Time without an XID error of a number, s, after which the next one is reported again. Within that time, the second
/// constant is the ratio between two reported counts.
const XID_S: f64 = 3600.0;
const XID_RATIO: u32 = 10;

/// Maximum number of XID numbers tracked per card, more than a driver reports in an hour.
const XIDS: usize = 64;

/// How long a condition must be bad to begin, and good to end, s.
const LOST_S: (f64, f64) = (1.5, 5.0);
const THROTTLED_S: (f64, f64) = (5.0, 60.0);
const FANS_S: (f64, f64) = (60.0, 60.0);
const LINK_S: (f64, f64) = (30.0, 30.0);

/// The state of one card.
#[derive(Debug, Clone, Default)]
pub(crate) struct Card {
    pub name: (u32, String),
    lost: (Condition, String),
    throttled: Condition,
    reasons: plimsoll_telemetry::Throttling,
    corrected: (Rising, Condition, u64),
    uncorrected: Option<u64>,
    replays: (Rising, Condition, u64),
    rows: Option<u64>,
    fans: (Condition, u32),
    link: (Condition, [(u32, u32); 2]),
    /// XID errors by number: time of the last one, count, and the count at which the next one is reported.
    xids: BTreeMap<u64, (f64, u32, u32)>,
}

/// Receives a finding and whether it begins or ends.
pub(crate) type Emit<'a> = dyn FnMut(Finding, Transition) + 'a;

impl Card {
    /// A card with this index and name, without samples yet.
    pub fn named(index: u32, name: &str) -> Self {
        Self { name: (index, name.to_owned()), ..Self::default() }
    }

    /// Processes a sample of the card, or `None` if the sample does not contain it. `is_guarded`: the heat guard
    /// reports heat, so this does not.
    pub fn observe(&mut self, now_s: f64, sample: Option<&CardSample>, is_guarded: bool, emit: &mut Emit<'_>) {
        let gone = match sample {
            None => Some("it is no longer listed"),
            Some(card) => card.lost.as_deref(),
        };
        if let Some(reason) = gone.filter(|_| !self.lost.0.is_on()) {
            reason.clone_into(&mut self.lost.1);
        }
        if let Some(change) = self.lost.0.step(now_s, Verdict::bad_if(gone.is_some()), LOST_S.0, LOST_S.1) {
            emit(Finding::Lost { reason: self.lost.1.clone() }, change);
        }
        let Some(card) = sample.filter(|card| card.lost.is_none()) else { return };
        self.name = (card.index, card.name.clone());
        self.observe_clocks(now_s, card, is_guarded, emit);
        self.observe_memory(now_s, card, emit);
        self.observe_link(now_s, card, emit);
        self.observe_xids(now_s, card, emit);
        if let Some(percent) = card.fan_percent {
            let verdict = match percent {
                full if full >= FANS.0 => Verdict::Bad,
                left if left < FANS.1 => Verdict::Good,
                _ => Verdict::Unclear,
            };
            self.fans.1 = if self.fans.0.is_on() { self.fans.1 } else { percent };
            if let Some(change) = self.fans.0.step(now_s, verdict, FANS_S.0, FANS_S.1) {
                emit(Finding::FansFull { percent: self.fans.1 }, change);
            }
        }
    }

    fn observe_clocks(&mut self, now_s: f64, card: &CardSample, is_guarded: bool, emit: &mut Emit<'_>) {
        let Some(reasons) = card.throttling else { return };
        let is_ours = reasons.is_trouble() && !(is_guarded && reasons.is_thermal());
        if is_ours && !self.throttled.is_on() {
            self.reasons = reasons;
        }
        if let Some(change) = self.throttled.step(now_s, Verdict::bad_if(is_ours), THROTTLED_S.0, THROTTLED_S.1) {
            emit(Finding::Throttled { reasons: self.reasons }, change);
        }
    }

    fn observe_memory(&mut self, now_s: f64, card: &CardSample, emit: &mut Emit<'_>) {
        if let Some((more, over_s)) = card.ecc_corrected.and_then(|count| self.corrected.0.add(now_s, count, HOUR_S)) {
            let (_, condition, reported) = &mut self.corrected;
            *reported = if condition.is_on() { *reported } else { more };
            let verdict = rise_state(more, CORRECTED);
            if let Some(change) = condition.step(now_s, verdict, 0.0, 0.0) {
                emit(Finding::EccCorrected { more: *reported, over: Seconds(over_s) }, change);
            }
        }
        if let Some(count) = card.ecc_uncorrected {
            // One uncorrected error is enough, and the finding never ends.
            if self.uncorrected.is_some_and(|before| count > before) {
                emit(Finding::EccUncorrected { count }, Transition::Begins);
            }
            self.uncorrected = Some(count);
        }
        let rows = [card.retired_pages, card.remapped_rows];
        if rows.iter().any(Option::is_some) {
            let count = rows.into_iter().flatten().sum::<u64>();
            if let Some(before) = self.rows.filter(|before| count > *before) {
                emit(Finding::RowsReplaced { count, more: count - before }, Transition::Begins);
            }
            self.rows = Some(count);
        }
    }

    fn observe_link(&mut self, now_s: f64, card: &CardSample, emit: &mut Emit<'_>) {
        if let Some((more, over_s)) = card.pcie_replays.and_then(|count| self.replays.0.add(now_s, count, REPLAYS_S)) {
            let (_, condition, reported) = &mut self.replays;
            *reported = if condition.is_on() { *reported } else { more };
            if let Some(change) = condition.step(now_s, rise_state(more, REPLAYS), 0.0, 0.0) {
                emit(Finding::PcieReplays { more: *reported, over: Seconds(over_s) }, change);
            }
        }
        let Some(link) = link_of(card) else { return };
        let verdict = match card.busy_percent {
            Some(busy) if busy >= BUSY => Verdict::bad_if(is_narrow(link)),
            _ => Verdict::Unclear,
        };
        if !self.link.0.is_on() {
            self.link.1 = link;
        }
        if let Some(change) = self.link.0.step(now_s, verdict, LINK_S.0, LINK_S.1) {
            let [generation, lanes] = self.link.1;
            emit(Finding::PcieNarrow { generation, lanes }, change);
        }
    }

    fn observe_xids(&mut self, now_s: f64, card: &CardSample, emit: &mut Emit<'_>) {
        self.xids.retain(|_, (last_s, ..)| now_s - *last_s < XID_S);
        for number in &card.xids {
            if self.xids.len() >= XIDS && !self.xids.contains_key(number) {
                continue;
            }
            let (last_s, times, next) = self.xids.entry(*number).or_insert((now_s, 0, 1));
            (*last_s, *times) = (now_s, times.saturating_add(1));
            if times >= next {
                *next = times.saturating_mul(XID_RATIO);
                emit(Finding::Xid { number: *number, times: *times }, Transition::Begins);
            }
        }
    }

    /// Whether its link is known to be slower than it could be.
    pub fn has_narrow_link(&self) -> bool {
        self.link.0.is_on()
    }
}

/// A rise of at least `bad` is bad, no rise is good.
fn rise_state(more: u64, bad: u64) -> Verdict {
    match more {
        0 => Verdict::Good,
        more if more >= bad => Verdict::Bad,
        _ => Verdict::Unclear,
    }
}

/// Generation and lanes of the link, each with its maximum.
fn link_of(card: &CardSample) -> Option<[(u32, u32); 2]> {
    let generation = card.pcie_generation.zip(card.limits.pcie_generation_max)?;
    let lanes = card.pcie_lanes.zip(card.limits.pcie_lanes_max)?;
    Some([generation, lanes])
}

fn is_narrow(link: [(u32, u32); 2]) -> bool {
    link.iter().any(|(now, most)| now < most)
}
