//! Realistic sensors: delayed, noisy, in whole degrees, and failing.

use crate::rng::Rng;

/// A simulated sensor.
#[derive(Debug, Clone)]
pub struct Sensor {
    lag_s: f64,
    noise_c: f64,
    rounding: Rounding,
    rng: Rng,
    seen_c: Option<f64>,
    stuck_c: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Rounding {
    No,
    Nearest,
    Down,
}

/// A failure of a sensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    None,
    /// It reports nothing.
    Silent,
    /// It keeps reporting the value at which it got stuck.
    Sticks,
    /// It reports an implausible value.
    Says(f64),
}

impl Sensor {
    pub fn random(rng: &mut Rng) -> Self {
        let rounding = rng.pick(&[Rounding::No, Rounding::Nearest, Rounding::Nearest, Rounding::Down]);
        let seed = rng.between(0.0, 1e15) as u64;
        let (lag_s, noise_c) = (rng.between(0.0, 2.0), rng.between(0.0, 0.4));
        Self { lag_s, noise_c, rounding, rng: Rng(seed), seen_c: None, stuck_c: None }
    }

    /// The reading `dt_s` after the previous one.
    pub fn read(&mut self, true_c: f64, dt_s: f64, fault: Fault) -> Option<f64> {
        let seen = self.seen_c.unwrap_or(true_c);
        let seen = seen + (true_c - seen) * dt_s / (dt_s + self.lag_s);
        self.seen_c = Some(seen);
        let noisy = seen + self.noise_c * (self.rng.between(-1.0, 1.0) + self.rng.between(-1.0, 1.0));
        let shown = match self.rounding {
            Rounding::No => noisy,
            Rounding::Nearest => noisy.round(),
            Rounding::Down => noisy.floor(),
        };
        if fault != Fault::Sticks {
            self.stuck_c = None;
        }
        match fault {
            Fault::None => Some(shown),
            Fault::Silent => None,
            Fault::Sticks => Some(*self.stuck_c.get_or_insert(shown)),
            Fault::Says(what) => Some(what),
        }
    }
}
