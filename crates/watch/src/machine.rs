//! View of the machine: the newest sample, and the last minutes of each card.

use plimsoll_telemetry::{CardSample, Sample};
use serde::Serialize;
use std::collections::VecDeque;

/// Maximum number of values per trace.
const TRACE: usize = 600;

/// Maximum number of cards kept.
const CARDS: usize = 64;

/// How long a missing card is still shown, s.
const REMEMBERED_S: f64 = 3600.0;

/// The last values of a reading, each with its Unix time in seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Trace(VecDeque<(f64, f64)>);

impl Trace {
    /// Adds a value, if there is one.
    fn push(&mut self, time_s: f64, value: Option<f64>) {
        let Some(value) = value.filter(|value| value.is_finite()) else { return };
        if self.0.len() == TRACE {
            self.0.pop_front();
        }
        self.0.push_back((time_s, value));
    }

    /// Times and values, the oldest first.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = (f64, f64)> + ExactSizeIterator + '_ {
        self.0.iter().copied()
    }
}

/// A card.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CardView {
    /// Its newest sample.
    pub sample: CardSample,
    /// The last XID error, by NVIDIA's number.
    pub last_xid: Option<u64>,
    /// Whether it is in the newest sample. A card that is not has fallen off the bus, or its driver is gone.
    pub is_there: bool,
    /// Unix time of its newest sample, in seconds.
    pub seen_s: f64,
    /// Core temperature, °C.
    pub temperature_c: Trace,
    /// Power draw, W.
    pub power_w: Trace,
    /// Utilization, percent.
    pub busy_percent: Trace,
    /// Used memory, bytes.
    pub used_bytes: Trace,
}

/// The machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct MachineView {
    /// The newest sample.
    pub latest: Option<Sample>,
    /// Its cards, including recently missing ones, by index.
    pub cards: Vec<CardView>,
    /// CPU utilization over all cores, percent.
    pub cpu_percent: Trace,
}

impl MachineView {
    /// Builds a view from samples of one machine, the oldest first.
    pub fn of(samples: impl IntoIterator<Item = Sample>) -> Self {
        let mut view = Self::default();
        samples.into_iter().for_each(|sample| view.observe(&sample));
        view
    }

    /// Adds a sample.
    pub fn observe(&mut self, sample: &Sample) {
        let time_s = sample.time_s;
        self.cpu_percent.push(time_s, sample.system.cpu_percent);
        for card in &mut self.cards {
            card.is_there = false;
        }
        for card in sample.cards.iter().take(CARDS) {
            self.observe_card(card, time_s);
        }
        // A clock jump must not keep or age a card wrongly.
        self.cards.retain(|card| card.is_there || (0.0..REMEMBERED_S).contains(&(time_s - card.seen_s)));
        self.cards.sort_by_key(|card| (card.sample.index, !card.is_there));
        self.cards.truncate(CARDS);
        self.latest = Some(sample.clone());
    }

    fn observe_card(&mut self, card: &CardSample, time_s: f64) {
        // A lost card may not report its UUID.
        let is_same = |known: &CardView| match (known.sample.uuid.is_empty(), card.uuid.is_empty()) {
            (false, false) => known.sample.uuid == card.uuid,
            _ => known.sample.index == card.index,
        };
        let index = self.cards.iter().position(is_same).unwrap_or_else(|| {
            self.cards.push(CardView {
                sample: card.clone(),
                last_xid: None,
                is_there: true,
                seen_s: time_s,
                temperature_c: Trace::default(),
                power_w: Trace::default(),
                busy_percent: Trace::default(),
                used_bytes: Trace::default(),
            });
            self.cards.len() - 1
        });
        let view = &mut self.cards[index];
        let (uuid, name) = (view.sample.uuid.clone(), view.sample.name.clone());
        view.sample = card.clone();
        if view.sample.uuid.is_empty() {
            view.sample.uuid = uuid;
        }
        if view.sample.name.is_empty() {
            view.sample.name = name;
        }
        (view.is_there, view.seen_s) = (true, time_s);
        view.last_xid = card.xids.last().copied().or(view.last_xid);
        view.temperature_c.push(time_s, card.temperature_c);
        view.power_w.push(time_s, card.power_w);
        view.busy_percent.push(time_s, card.busy_percent.map(f64::from));
        view.used_bytes.push(time_s, card.used.map(|used| used.as_f64()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(time_s: f64, cards: &[(u32, &str, Option<f64>)]) -> Sample {
        let card = |(index, uuid, temperature_c): &(u32, &str, Option<f64>)| CardSample {
            index: *index,
            uuid: (*uuid).to_owned(),
            temperature_c: *temperature_c,
            ..CardSample::default()
        };
        Sample { time_s, cards: cards.iter().map(card).collect(), ..Sample::default() }
    }

    #[test]
    fn missing_cards_are_shown_as_missing_and_their_traces_continue_on_return() {
        let both: &[_] = &[(0, "a", Some(50.0)), (1, "b", None)];
        let mut view = MachineView::of([sample(1.0, both), sample(2.0, &[(0, "b", Some(40.0))])]);
        let seen = |view: &MachineView| {
            let cards = view.cards.iter().map(|card| {
                (card.sample.uuid.clone(), card.is_there, card.temperature_c.values().map(|(_, c)| c).collect())
            });
            cards.collect::<Vec<(String, bool, Vec<f64>)>>()
        };
        assert_eq!(seen(&view), [("b".into(), true, vec![40.0]), ("a".into(), false, vec![50.0])]);
        view.observe(&sample(3.0, &[]));
        assert!(view.cards.iter().all(|card| !card.is_there) && view.cards.len() == 2);
        view.observe(&sample(4.0, &[(0, "a", Some(51.0)), (1, "b", Some(41.0))]));
        assert_eq!(seen(&view), [("a".into(), true, vec![50.0, 51.0]), ("b".into(), true, vec![40.0, 41.0])]);
        // A clock that is set back or far ahead.
        for time_s in [-1e9, 1e9] {
            view.observe(&sample(time_s, &[(1, "b", None)]));
            assert_eq!(view.cards.len(), 1, "{time_s}");
        }
    }

    #[test]
    fn the_last_error_of_a_card_is_kept_while_it_reports_none() {
        let with = |time_s, xids: &[u64]| {
            let mut sample = sample(time_s, &[(0, "a", None)]);
            sample.cards[0].xids = xids.to_vec();
            sample
        };
        let mut view = MachineView::of([with(1.0, &[])]);
        assert_eq!(view.cards[0].last_xid, None);
        for (time_s, xids, last) in [(2.0, &[31, 79][..], 79), (3.0, &[], 79), (4.0, &[13], 13)] {
            view.observe(&with(time_s, xids));
            assert_eq!(view.cards[0].last_xid, Some(last));
        }
    }

    #[test]
    fn traces_are_bounded_and_skip_missing_readings() {
        let samples = (0..2_000).map(|n| {
            let reading = (n % 2 == 0).then_some(if n == 1_998 { f64::NAN } else { f64::from(n) });
            sample(f64::from(n), &[(0, "a", reading)])
        });
        let view = MachineView::of(samples);
        let trace = &view.cards[0].temperature_c;
        assert_eq!((trace.values().len(), trace.values().next_back()), (TRACE, Some((1_996.0, 1_996.0))));
    }
}
