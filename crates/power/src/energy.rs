//! The energy that cards used, from samples: from a card's energy counter or, without one, from its power draw.
//! A driver restart resets counters, and samples may be missing. Neither adds energy that was not used.

use plimsoll_telemetry::{CardSample, EnergySource, EnergyUse, Sample};
use plimsoll_units::Seconds;

/// Upper limit on a card's power, W. A counter that rises faster was reset or replaced.
const MAX_W: f64 = 5_000.0;

/// Energy by which a counter may exceed that limit, J: counters are updated in steps.
const STEP_J: f64 = 500.0;

/// The longest interval over which to interpolate power, s.
const MAX_INTERVAL_S: f64 = 60.0;

/// Adds up the energy of some cards.
#[derive(Debug, Clone)]
pub struct Meter {
    cards: Vec<Card>,
    /// The energy of earlier sessions of the run.
    before: Option<EnergyUse>,
}

#[derive(Debug, Clone, Default)]
struct Card {
    uuid: String,
    /// The time of the last sample, and its power.
    last: Option<(f64, Option<f64>)>,
    /// The time and value of the last counter reading.
    counter: Option<(f64, f64)>,
    counted_j: f64,
    /// Energy from power, for intervals without a counter.
    integrated_j: f64,
    /// The part of it since the last counter reading. The next reading replaces it.
    since_counter_j: f64,
    since_counter_missed_s: f64,
    /// Time without data, s.
    missed_s: f64,
}

impl Meter {
    /// A meter for the cards with these UUIDs. `before`: the energy of earlier sessions.
    pub fn new(cards: &[String], before: Option<EnergyUse>) -> Self {
        let cards = cards.iter().map(|uuid| Card { uuid: uuid.clone(), ..Card::default() }).collect();
        Self { cards, before }
    }

    /// Adds a sample at a time of a monotonic clock.
    pub fn observe(&mut self, time: Seconds, sample: &Sample) {
        for card in &mut self.cards {
            let now = sample.cards.iter().find(|other| other.uuid == card.uuid && other.lost.is_none());
            card.observe(time.0, now);
        }
    }

    /// The energy of all sessions so far; `None` if no card has ever reported any.
    pub fn used(&self) -> Option<EnergyUse> {
        let counted = self.cards.iter().map(|card| card.counted_j).sum::<f64>();
        let integrated = self.cards.iter().map(|card| card.integrated_j).sum::<f64>();
        let missed_s = self.cards.iter().map(|card| card.missed_s).fold(0.0, f64::max);
        let has_data = self.cards.iter().any(|card| card.last.is_some_and(|(_, power)| power.is_some()))
            || self.cards.iter().any(|card| card.counter.is_some());
        let now = has_data.then_some(EnergyUse {
            energy_j: counted + integrated,
            by: match (counted > 0.0, integrated > 0.0) {
                (_, false) => EnergySource::Counter,
                (false, true) => EnergySource::Power,
                (true, true) => EnergySource::Both,
            },
            missed_s,
            cost: None,
            currency: None,
        });
        match (self.before.clone(), now) {
            (Some(before), Some(now)) => Some(EnergyUse {
                energy_j: before.energy_j + now.energy_j,
                by: if before.by == now.by || now.energy_j == 0.0 { before.by } else { EnergySource::Both },
                missed_s: before.missed_s + now.missed_s,
                ..now
            }),
            (before, now) => before.or(now),
        }
    }
}

impl Card {
    fn observe(&mut self, time_s: f64, now: Option<&CardSample>) {
        // A missing card may still draw power. The next sample accounts for the time since the last one.
        let Some(now) = now else { return };
        let power = now.power_w.filter(|watts| (0.0..=MAX_W).contains(watts));
        let counter = now.energy_j.filter(|joules| joules.is_finite() && *joules >= 0.0);
        let has_reading = power.is_some() || counter.is_some();
        if let Some((then_s, power_then)) = self.last.filter(|(then_s, _)| time_s > *then_s) {
            self.integrate(time_s - then_s, power_then, power);
        }
        if has_reading || self.last.is_some() {
            self.last = Some((time_s, power));
        }
        if let Some(joules) = counter {
            self.count(time_s, joules);
        }
    }

    /// Adds the energy of an interval from the power at its ends. A later counter reading replaces it.
    fn integrate(&mut self, for_s: f64, then: Option<f64>, now: Option<f64>) {
        let watts = match (then, now) {
            (Some(then), Some(now)) => Some((then + now) / 2.0),
            (one, other) => one.or(other),
        };
        match watts.filter(|_| for_s <= MAX_INTERVAL_S) {
            Some(watts) => {
                self.integrated_j += watts * for_s;
                self.since_counter_j += watts * for_s;
            }
            None => {
                self.missed_s += for_s;
                self.since_counter_missed_s += for_s;
            }
        }
    }

    fn count(&mut self, time_s: f64, joules: f64) {
        if let Some((then_s, then_j)) = self.counter {
            let (used, for_s) = (joules - then_j, time_s - then_s);
            // Otherwise the counter was reset, and the energy from power stays.
            if (0.0..=for_s.max(0.0) * MAX_W + STEP_J).contains(&used) {
                self.counted_j += used;
                self.integrated_j -= self.since_counter_j;
                self.missed_s -= self.since_counter_missed_s;
            }
        }
        if self.integrated_j.abs() < 1e-6 {
            self.integrated_j = 0.0;
        }
        (self.since_counter_j, self.since_counter_missed_s) = (0.0, 0.0);
        self.counter = Some((time_s, joules));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample of a card with its energy and power.
    fn sample(energy_j: Option<f64>, power_w: Option<f64>) -> Sample {
        let card = CardSample { uuid: "GPU-a".to_owned(), energy_j, power_w, ..CardSample::default() };
        Sample { cards: vec![card], ..Sample::default() }
    }

    /// The energy in joules, its source, and the missed seconds of samples (time, energy, power).
    fn used(samples: &[(f64, Option<f64>, Option<f64>)]) -> Option<(f64, EnergySource, f64)> {
        let mut meter = Meter::new(&["GPU-a".to_owned()], None);
        samples.iter().for_each(|(time, energy, power)| meter.observe(Seconds(*time), &sample(*energy, *power)));
        meter.used().map(|used| (used.energy_j.round(), used.by, used.missed_s))
    }

    #[test]
    fn the_counter_is_preferred_to_power() {
        let (some, none) = (Some, None::<f64>);
        let counted = [(0.0, some(1000.0), some(100.0)), (10.0, some(2100.0), some(100.0))];
        assert_eq!(used(&counted), Some((1100.0, EnergySource::Counter, 0.0)));
        let drawn = [(0.0, none, some(100.0)), (10.0, none, some(200.0)), (20.0, none, some(200.0))];
        assert_eq!(used(&drawn), Some((3500.0, EnergySource::Power, 0.0)));
        assert_eq!(used(&[(0.0, none, none), (10.0, none, none)]), None);
    }

    #[test]
    fn a_reset_counter_neither_adds_nor_removes_energy() {
        let reset =
            [(0.0, Some(5000.0), Some(100.0)), (10.0, Some(20.0), Some(100.0)), (20.0, Some(1020.0), Some(100.0))];
        assert_eq!(used(&reset), Some((2000.0, EnergySource::Both, 0.0)));
        let jump =
            [(0.0, Some(0.0), Some(100.0)), (1.0, Some(1e12), Some(100.0)), (2.0, Some(1e12 + 90.0), Some(100.0))];
        assert_eq!(used(&jump), Some((190.0, EnergySource::Both, 0.0)));
    }

    #[test]
    fn only_the_counter_makes_up_for_missing_samples() {
        // The counter was missing in one sample. The energy from power is not counted twice.
        let gap = [(0.0, Some(0.0), Some(100.0)), (10.0, None, Some(100.0)), (20.0, Some(2200.0), Some(100.0))];
        assert_eq!(used(&gap), Some((2200.0, EnergySource::Counter, 0.0)));
        let long = [(0.0, None, Some(100.0)), (1000.0, None, Some(100.0)), (1010.0, None, Some(100.0))];
        assert_eq!(used(&long), Some((1000.0, EnergySource::Power, 1000.0)));
        let counted = [(0.0, Some(0.0), None), (1000.0, Some(50_000.0), None)];
        assert_eq!(used(&counted), Some((50_000.0, EnergySource::Counter, 0.0)));
        // A clock that stands still or runs backward adds nothing.
        let back = [(10.0, None, Some(100.0)), (10.0, None, Some(100.0)), (5.0, None, Some(100.0))];
        assert_eq!(used(&back), Some((0.0, EnergySource::Counter, 0.0)));
    }

    #[test]
    fn several_cards_and_earlier_sessions_add_up() {
        let before =
            EnergyUse { energy_j: 500.0, by: EnergySource::Counter, missed_s: 1.0, cost: None, currency: None };
        let mut meter = Meter::new(&["GPU-a".to_owned(), "GPU-b".to_owned()], Some(before.clone()));
        assert_eq!(meter.used(), Some(before));
        for (time, joules) in [(0.0, 0.0), (10.0, 1000.0)] {
            let card =
                |uuid: &str| CardSample { uuid: uuid.to_owned(), energy_j: Some(joules), ..CardSample::default() };
            let cards = vec![card("GPU-a"), card("GPU-b"), card("GPU-of-others")];
            meter.observe(Seconds(time), &Sample { cards, ..Sample::default() });
        }
        assert_eq!(meter.used().map(|used| (used.energy_j, used.by)), Some((2500.0, EnergySource::Counter)));
    }
}
