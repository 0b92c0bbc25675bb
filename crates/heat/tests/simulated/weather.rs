//! The surroundings of a card over a day: air, dust, a failing fan.

use crate::plant::Around;
use crate::rng::Rng;

/// Seconds per day.
pub const DAY_S: f64 = 86_400.0;

/// The surroundings of a card over a day.
#[derive(Debug, Clone, Default)]
pub struct Weather {
    pub air_c: f64,
    /// Amplitude of the daily cycle of the air temperature, °C.
    pub swing_c: f64,
    /// Warmest time of the day, s.
    pub noon_s: f64,
    /// Rise of the air temperature over the day, °C.
    pub drift_c: f64,
    /// Increase of the cooler's resistance by dust at the end of the day, as a fraction.
    pub dust: f64,
    /// When the fan begins to fail, how long that takes, s, and the remaining speed.
    pub fan_fails: Option<(f64, f64, f64)>,
}

impl Weather {
    /// Constant air temperature.
    pub fn constant(rng: &mut Rng) -> Self {
        Self { air_c: rng.between(18.0, 42.0), ..Self::default() }
    }

    /// Day and night, a seasonal drift, dust.
    pub fn changing(rng: &mut Rng) -> Self {
        Self {
            air_c: rng.between(18.0, 36.0),
            swing_c: rng.between(2.0, 8.0),
            noon_s: rng.between(0.0, DAY_S),
            drift_c: rng.between(-4.0, 8.0),
            dust: rng.between(0.0, 0.3),
            fan_fails: None,
        }
    }

    /// A fan that fails within a second to an hour.
    pub fn failing(rng: &mut Rng) -> Self {
        let fails = (rng.between(0.1, 0.8) * DAY_S, rng.log_between(1.0, 3600.0), rng.between(0.0, 0.4));
        Self { fan_fails: Some(fails), ..Self::constant(rng) }
    }

    pub fn at(&self, time_s: f64) -> Around {
        let swing = ((time_s - self.noon_s) / DAY_S * std::f64::consts::TAU).cos();
        let fan_most = self.fan_fails.map_or(1.0, |(from_s, over_s, left)| {
            let failed = ((time_s - from_s) / over_s).clamp(0.0, 1.0);
            1.0 - failed * (1.0 - left)
        });
        let day = time_s / DAY_S;
        Around { air_c: self.air_c + self.swing_c * swing + self.drift_c * day, fan_most, dust: 1.0 + self.dust * day }
    }
}
