//! Orders to a run: how fast it may compute.
//! Not here: how an order is found. Read next: `guard.rs`.

use crate::reading::Sensor;
use plimsoll_units::Seconds;

/// An order older than this many samples and than this time, s, is stale.
const STALE_SAMPLES: f64 = 10.0;
const STALE_S: f64 = 30.0;

/// Maximum duty of a run with a stale order, and the duty if that order was a pause.
const STALE_SHARE: f64 = 0.5;

/// How fast a run may compute until the next sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Order {
    /// At full speed.
    Run,
    /// For this fraction of the time, with pauses between micro-batches.
    Slow(Duty),
    /// Paused: the next micro-batch waits.
    Pause,
    /// The run ends. Final.
    Stop {
        /// The sensor that was too hot.
        why: TooHot,
    },
}

/// A sensor above its maximum in two consecutive samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TooHot {
    /// Index of the card among the readings.
    pub card: usize,
    /// The sensor.
    pub sensor: Sensor,
    /// Its temperature, °C.
    pub celsius: f64,
    /// Its maximum, °C.
    pub max_c: f64,
}

impl Order {
    /// The fraction of the time that the cards may compute: 1 for `Run`, 0 for `Pause` and `Stop`.
    pub fn share(&self) -> f64 {
        match self {
            Order::Run => 1.0,
            Order::Slow(duty) => duty.share(),
            Order::Pause | Order::Stop { .. } => 0.0,
        }
    }

    /// How long an order stays valid, s, if the guard receives a sample each `every`. After that, use
    /// [`stale`](Order::stale).
    pub fn lasts(every: Seconds) -> Seconds {
        Seconds((every.0 * STALE_SAMPLES).max(STALE_S))
    }

    /// The order to use if no sample has renewed this one in time: at most half of the time, so that an unobserved card
    /// stays cool and its run continues. `Stop` stays.
    pub fn stale(self) -> Self {
        match self {
            Order::Slow(duty) if duty.share() < STALE_SHARE => self,
            Order::Run | Order::Slow(_) | Order::Pause => Order::Slow(Duty(STALE_SHARE)),
            Order::Stop { .. } => self,
        }
    }

    /// The stricter of two orders; the first if they are equally strict.
    pub fn stricter(self, other: Self) -> Self {
        if other.strictness() > self.strictness() { other } else { self }
    }

    /// Larger for slower orders.
    fn strictness(&self) -> f64 {
        match self {
            Order::Stop { .. } => 2.0,
            other => 1.0 - other.share(),
        }
    }
}

/// The fraction of the time that a card may compute: above 0, below 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Duty(f64);

impl Duty {
    /// Lowest duty of an order. Anything less is a pause.
    pub(crate) const LEAST: f64 = 0.02;
    /// Highest duty of an order. Anything more is full speed.
    pub(crate) const MOST: f64 = 0.99;

    /// The closest duty that an order may have.
    pub(crate) fn new(share: f64) -> Self {
        Self(share.clamp(Self::LEAST, Self::MOST))
    }

    /// The fraction of the time, above 0 and below 1.
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
    fn stale_orders_allow_at_most_half_of_the_time_and_never_stop_a_run() {
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
