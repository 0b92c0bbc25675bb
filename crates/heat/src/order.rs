//! What a run is told: how fast it may go.
//! Not here: how that is found. Read next: `guard.rs`.

use crate::reading::Sensor;
use plimsoll_units::Seconds;

/// An order that is older than so many samples, and than this, s, is nobody's any more.
const STALE_SAMPLES: f64 = 10.0;
const STALE_S: f64 = 30.0;

/// A run whose orders are stale runs for so much of the time at the most, and for so much where it was paused.
const STALE_SHARE: f64 = 0.5;

/// How fast a run may go until the next sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Order {
    /// As fast as it can.
    Run,
    /// For this part of the time, by pauses between micro-batches.
    Slow(Duty),
    /// Not at all for now: the next micro-batch waits.
    Pause,
    /// Not any more. Final.
    Stop {
        /// What was too hot.
        why: TooHot,
    },
}

/// A sensor that was above its maximum twice in a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TooHot {
    /// Which card, as readings count them.
    pub card: usize,
    /// Which sensor.
    pub sensor: Sensor,
    /// What it said, °C.
    pub celsius: f64,
    /// Its maximum, °C.
    pub max_c: f64,
}

impl Order {
    /// The part of the time that the cards may compute: 1 for `Run`, 0 for `Pause` and `Stop`.
    pub fn share(&self) -> f64 {
        match self {
            Order::Run => 1.0,
            Order::Slow(duty) => duty.share(),
            Order::Pause | Order::Stop { .. } => 0.0,
        }
    }

    /// How old an order of a guard that is given a sample each so often may become, s, until [`stale`](Order::stale) holds.
    pub fn lasts(every: Seconds) -> Seconds {
        Seconds((every.0 * STALE_SAMPLES).max(STALE_S))
    }

    /// What holds where no sample has renewed an order for long: half of the time, or less where it was less, so that a card
    /// that nobody looks at stays cool and its run goes on. `Stop` stays.
    pub fn stale(self) -> Self {
        match self {
            Order::Slow(duty) if duty.share() < STALE_SHARE => self,
            Order::Run | Order::Slow(_) | Order::Pause => Order::Slow(Duty(STALE_SHARE)),
            Order::Stop { .. } => self,
        }
    }

    /// The stricter of two orders; the first if they are alike.
    pub fn stricter(self, other: Self) -> Self {
        if other.strictness() > self.strictness() { other } else { self }
    }

    /// Larger for what is slower.
    fn strictness(&self) -> f64 {
        match self {
            Order::Stop { .. } => 2.0,
            other => 1.0 - other.share(),
        }
    }
}

/// The part of the time that a card may compute: above 0, below 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Duty(f64);

impl Duty {
    /// The least that is ordered; less is a pause.
    pub(crate) const LEAST: f64 = 0.02;
    /// The most that is ordered; more is running freely.
    pub(crate) const MOST: f64 = 0.99;

    /// The nearest duty that may be ordered.
    pub(crate) fn new(share: f64) -> Self {
        Self(share.clamp(Self::LEAST, Self::MOST))
    }

    /// The part of the time, above 0 and below 1.
    pub fn share(&self) -> f64 {
        self.0
    }

    /// How long to wait after a micro-batch that took `batch`.
    pub fn pause_after(&self, batch: Seconds) -> Seconds {
        Seconds(batch.0 * (1.0 - self.0) / self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_s_orders_leave_a_run_half_of_the_time_at_most_and_never_stop_it() {
        for (order, share) in [(Order::Run, 0.5), (Order::Pause, 0.5)] {
            assert_eq!(order.stale().share(), share);
        }
        let slow = |share| Order::Slow(Duty::new(share));
        assert_eq!((slow(0.9).stale(), slow(0.2).stale()), (slow(0.5), slow(0.2)));
        let why = TooHot { card: 0, sensor: Sensor::Core, celsius: 90.0, max_c: 83.0 };
        assert_eq!(Order::Stop { why }.stale(), Order::Stop { why });
        assert_eq!([0.1, 60.0].map(|every| Order::lasts(Seconds(every)).0), [30.0, 600.0]);
    }
}
