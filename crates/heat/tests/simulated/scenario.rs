//! A random day of a run: cards, air, sensors and their failures, micro-batches, samples.

use crate::plant::Build;
use crate::rng::Rng;
use crate::sensor::{Fault, Sensor};
use crate::weather::{DAY_S, Weather};

/// The kind of a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Constant conditions.
    Constant,
    /// Day and night, season, and dust.
    Changing,
    /// A fan fails.
    Fan,
    /// Sensors fail.
    Sensors,
    /// Two to four cards.
    Cards,
}

/// A card and its surroundings.
#[derive(Debug, Clone)]
pub struct Card {
    pub build: Build,
    pub weather: Weather,
    pub core: Sensor,
    pub memory: Option<Sensor>,
    pub hotspot: Option<Sensor>,
    pub fault: Option<Faulty>,
}

/// A failure of the die sensor.
#[derive(Debug, Clone, Copy)]
pub struct Faulty {
    pub fault: Fault,
    pub from_s: f64,
    pub for_s: f64,
    /// Interval at which it recurs, s.
    pub every_s: f64,
}

impl Faulty {
    fn random(rng: &mut Rng) -> Self {
        let fault = rng.pick(&[Fault::Silent, Fault::Silent, Fault::Sticks, Fault::Sticks, Fault::Says(0.0)]);
        let fault = if rng.chance(0.3) { Fault::Says(rng.pick(&[-40.0, 255.0, 127.0, f64::NAN, 20.0])) } else { fault };
        let for_s = rng.pick(&[2.0, 20.0, 300.0, 5000.0, DAY_S]) * rng.between(0.5, 1.0);
        let every_s = for_s * rng.between(1.5, 20.0) + 600.0;
        Self { fault, from_s: rng.between(0.0, 0.5) * DAY_S, for_s, every_s }
    }

    pub fn at(&self, time_s: f64) -> Fault {
        let since = (time_s - self.from_s) % self.every_s;
        if (0.0..self.for_s).contains(&since) { self.fault } else { Fault::None }
    }
}

/// A day of a run.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub kind: Kind,
    pub cards: Vec<Card>,
    pub batch_s: f64,
    pub jitter: f64,
    pub sample_s: f64,
    /// Fraction of missing samples.
    pub missed: f64,
    pub seed: u64,
}

impl Scenario {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x9e37);
        let kind = match seed % 10 {
            0..=3 => Kind::Constant,
            4 | 5 => Kind::Changing,
            6 => Kind::Fan,
            7 | 8 => Kind::Sensors,
            _ => Kind::Cards,
        };
        let count = if kind == Kind::Cards { rng.pick(&[2, 2, 2, 3, 4]) } else { 1 };
        let cards = (0..count).map(|_| Card::random(kind, &mut rng)).collect();
        let batch_s = if rng.chance(0.6) { rng.log_between(0.05, 2.0) } else { rng.log_between(2.0, 30.0) };
        let often_s = if rng.chance(0.3) { 0.2 } else { 0.5 };
        let sample_s = rng.pick(&[often_s, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 5.0, 5.0, 10.0]);
        let missed = if rng.chance(0.3) { rng.between(0.0, 0.2) } else { 0.0 };
        Self { kind, cards, batch_s, jitter: 0.05, sample_s, missed, seed }
    }
}

impl Card {
    fn random(kind: Kind, rng: &mut Rng) -> Self {
        let weather = match kind {
            Kind::Changing => Weather::changing(rng),
            Kind::Fan => Weather::failing(rng),
            _ => Weather::constant(rng),
        };
        Self {
            build: Build::random(rng),
            weather,
            core: Sensor::random(rng),
            memory: rng.chance(0.5).then(|| Sensor::random(rng)),
            hotspot: rng.chance(0.3).then(|| Sensor::random(rng)),
            fault: (kind == Kind::Sensors).then(|| Faulty::random(rng)),
        }
    }
}
