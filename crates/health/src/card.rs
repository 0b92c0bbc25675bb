//! One card: its errors, its fans, its link, and whether it is there.

use crate::condition::{Change, Condition, Rising, State};
use crate::finding::Finding;
use plimsoll_telemetry::CardSample;
use plimsoll_units::Seconds;
use std::collections::BTreeMap;

/// Corrected errors within an hour that are unusual: working memory has few in its life.
const CORRECTED: u64 = 10;
const HOUR_S: f64 = 3600.0;

/// Packets sent again within ten minutes that are unusual.
const REPLAYS: u64 = 100;
const REPLAYS_S: f64 = 600.0;

/// From here on fans have nothing left, and here they have again, percent.
const FANS: (u32, u32) = (98, 90);

/// A card that is so busy has its link at full speed, percent: idle cards save power there.
const BUSY: u32 = 50;

/// After so long without an error of a number, the next is told again, s; and each time that is told is so many times the one
/// before.
const XID_S: f64 = 3600.0;
const XID_TIMES: u32 = 10;

/// More kinds of errors than a driver has in an hour.
const XIDS: usize = 64;

/// Seconds for which things must be bad, and good.
const LOST_S: (f64, f64) = (1.5, 5.0);
const THROTTLED_S: (f64, f64) = (5.0, 60.0);
const FANS_S: (f64, f64) = (60.0, 60.0);
const LINK_S: (f64, f64) = (30.0, 30.0);

/// What is known of a card.
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
    /// Errors by number: when last, how often, and the next time that is told.
    xids: BTreeMap<u64, (f64, u32, u32)>,
}

/// Tells what changed of a finding.
pub(crate) type Tell<'a> = dyn FnMut(Finding, Change) + 'a;

impl Card {
    /// A card of this number and name, of which nothing is known yet.
    pub fn named(index: u32, name: &str) -> Self {
        Self { name: (index, name.to_owned()), ..Self::default() }
    }

    /// A sample of it, or none where the sample has none of it. `is_guarded`: heat is somebody else's to tell.
    pub fn observe(&mut self, now_s: f64, sample: Option<&CardSample>, is_guarded: bool, tell: &mut Tell<'_>) {
        let gone = match sample {
            None => Some("it is no longer listed"),
            Some(card) => card.lost.as_deref(),
        };
        if let Some(reason) = gone.filter(|_| !self.lost.0.is_on()) {
            reason.clone_into(&mut self.lost.1);
        }
        if let Some(change) = self.lost.0.step(now_s, State::bad_if(gone.is_some()), LOST_S.0, LOST_S.1) {
            tell(Finding::Lost { reason: self.lost.1.clone() }, change);
        }
        let Some(card) = sample.filter(|card| card.lost.is_none()) else { return };
        self.name = (card.index, card.name.clone());
        self.observe_clocks(now_s, card, is_guarded, tell);
        self.observe_memory(now_s, card, tell);
        self.observe_link(now_s, card, tell);
        self.observe_xids(now_s, card, tell);
        if let Some(percent) = card.fan_percent {
            let state = match percent {
                full if full >= FANS.0 => State::Bad,
                left if left < FANS.1 => State::Good,
                _ => State::Between,
            };
            self.fans.1 = if self.fans.0.is_on() { self.fans.1 } else { percent };
            if let Some(change) = self.fans.0.step(now_s, state, FANS_S.0, FANS_S.1) {
                tell(Finding::FansFull { percent: self.fans.1 }, change);
            }
        }
    }

    fn observe_clocks(&mut self, now_s: f64, card: &CardSample, is_guarded: bool, tell: &mut Tell<'_>) {
        let Some(reasons) = card.throttling else { return };
        let is_ours = reasons.is_trouble() && !(is_guarded && reasons.is_thermal());
        if is_ours && !self.throttled.is_on() {
            self.reasons = reasons;
        }
        if let Some(change) = self.throttled.step(now_s, State::bad_if(is_ours), THROTTLED_S.0, THROTTLED_S.1) {
            tell(Finding::Throttled { reasons: self.reasons }, change);
        }
    }

    fn observe_memory(&mut self, now_s: f64, card: &CardSample, tell: &mut Tell<'_>) {
        if let Some((more, over_s)) = card.ecc_corrected.and_then(|count| self.corrected.0.add(now_s, count, HOUR_S)) {
            let (_, condition, told) = &mut self.corrected;
            *told = if condition.is_on() { *told } else { more };
            let state = rise_state(more, CORRECTED);
            if let Some(change) = condition.step(now_s, state, 0.0, 0.0) {
                tell(Finding::EccCorrected { more: *told, over: Seconds(over_s) }, change);
            }
        }
        if let Some(count) = card.ecc_uncorrected {
            // One is enough, and it is never over.
            if self.uncorrected.is_some_and(|before| count > before) {
                tell(Finding::EccUncorrected { count }, Change::Begins);
            }
            self.uncorrected = Some(count);
        }
        let rows = [card.retired_pages, card.remapped_rows];
        if rows.iter().any(Option::is_some) {
            let count = rows.into_iter().flatten().sum::<u64>();
            if let Some(before) = self.rows.filter(|before| count > *before) {
                tell(Finding::RowsReplaced { count, more: count - before }, Change::Begins);
            }
            self.rows = Some(count);
        }
    }

    fn observe_link(&mut self, now_s: f64, card: &CardSample, tell: &mut Tell<'_>) {
        if let Some((more, over_s)) = card.pcie_replays.and_then(|count| self.replays.0.add(now_s, count, REPLAYS_S)) {
            let (_, condition, told) = &mut self.replays;
            *told = if condition.is_on() { *told } else { more };
            if let Some(change) = condition.step(now_s, rise_state(more, REPLAYS), 0.0, 0.0) {
                tell(Finding::PcieReplays { more: *told, over: Seconds(over_s) }, change);
            }
        }
        let Some(link) = link_of(card) else { return };
        let state = match card.busy_percent {
            Some(busy) if busy >= BUSY => State::bad_if(is_narrow(link)),
            _ => State::Between,
        };
        if !self.link.0.is_on() {
            self.link.1 = link;
        }
        if let Some(change) = self.link.0.step(now_s, state, LINK_S.0, LINK_S.1) {
            let [generation, lanes] = self.link.1;
            tell(Finding::PcieNarrow { generation, lanes }, change);
        }
    }

    fn observe_xids(&mut self, now_s: f64, card: &CardSample, tell: &mut Tell<'_>) {
        self.xids.retain(|_, (last_s, ..)| now_s - *last_s < XID_S);
        for number in &card.xids {
            if self.xids.len() >= XIDS && !self.xids.contains_key(number) {
                continue;
            }
            let (last_s, times, next) = self.xids.entry(*number).or_insert((now_s, 0, 1));
            (*last_s, *times) = (now_s, times.saturating_add(1));
            if times >= next {
                *next = times.saturating_mul(XID_TIMES);
                tell(Finding::Xid { number: *number, times: *times }, Change::Begins);
            }
        }
    }

    /// Whether its link is slower than it could be, as far as is known.
    pub fn has_narrow_link(&self) -> bool {
        self.link.0.is_on()
    }
}

/// A rise of so many and more is bad, none is good.
fn rise_state(more: u64, bad: u64) -> State {
    match more {
        0 => State::Good,
        more if more >= bad => State::Bad,
        _ => State::Between,
    }
}

/// Generation and lanes of the link, each with what could be.
fn link_of(card: &CardSample) -> Option<[(u32, u32); 2]> {
    let generation = card.pcie_generation.zip(card.limits.pcie_generation_max)?;
    let lanes = card.pcie_lanes.zip(card.limits.pcie_lanes_max)?;
    Some([generation, lanes])
}

fn is_narrow(link: [(u32, u32); 2]) -> bool {
    link.iter().any(|(now, most)| now < most)
}
