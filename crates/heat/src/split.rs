//! Slows a card first by its power limit, down to the lowest allowed one, and then by pauses. A chip with a lower power
//! limit reduces voltage along with clocks, so it loses less speed than heat; a pause loses the same fraction of both.
//!
//! ```text
//!   allowed heat, as a fraction of the card's heat at full speed
//!   1 ───── limit falls, no pauses ───── lowest limit ───── pauses ───── 0
//! ```
//! Not here: how much heat is allowed. Read next: `card.rs`.

use crate::order::{Duty, Order};
use crate::trend::weight;

/// Smallest change of a limit, as a fraction of the draw at full speed. Smaller changes are noise. It is below the
/// amount by which the duty may differ from the one carried out (`STEP` of `throttle.rs`).
const STEP: f64 = 0.005;

/// Minimum time before the limit is raised, s.
const RAISE_S: f64 = 10.0;

/// Time constant of the measured draw at full speed, s.
const FULL_S: f64 = 20.0;

/// Minimum draw of a computing card, as a fraction of its limit. A card that draws less is waiting.
const LEAST_DRAW: f64 = 0.3;

/// The allowed range of a card's power limit, W.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PowerRange {
    /// Lowest limit.
    pub least_w: f64,
    /// Limit while nothing is hot, and the highest one.
    pub most_w: f64,
}

/// Divides a card's slowdown between its power limit and pauses.
#[derive(Debug, Clone)]
pub(crate) struct Split {
    range: PowerRange,
    /// Measured draw at full speed, W, if known.
    full_w: Option<f64>,
    limit_w: f64,
    since_s: f64,
}

impl Split {
    pub(crate) fn new(range: PowerRange) -> Self {
        Self { range, full_w: None, limit_w: range.most_w, since_s: RAISE_S }
    }

    /// The current limit, W.
    pub(crate) fn limit_w(&self) -> f64 {
        self.limit_w
    }

    /// Whether the limit is the lowest allowed one.
    pub(crate) fn is_lowest(&self) -> bool {
        self.limit_w <= self.range.least_w
    }

    /// The fraction of its full heat output that the card produces while it computes under its limit.
    pub(crate) fn cap(&self) -> f64 {
        (self.limit_w / self.full_w()).clamp(Duty::LEAST, 1.0)
    }

    fn full_w(&self) -> f64 {
        self.full_w.unwrap_or(self.range.most_w)
    }

    /// Records the card's draw, W, and the fraction of the time that it was allowed to compute.
    pub(crate) fn observe_power(&mut self, power_w: Option<f64>, duty: f64, dt_s: f64) {
        let is_free = duty >= 1.0 && self.limit_w >= self.range.most_w;
        let plausible = |watts: &f64| (LEAST_DRAW * self.range.most_w..=1.2 * self.range.most_w).contains(watts);
        if let Some(watts) = power_w.filter(|watts| is_free && plausible(watts)) {
            let full_w = self.full_w.unwrap_or(watts);
            self.full_w = Some(full_w + weight(dt_s, FULL_S) * (watts - full_w));
        }
    }

    /// Carries out an order about heat: adjusts the limit, and returns the remaining slowdown for pauses.
    pub(crate) fn carry_out(&mut self, order: Order, dt_s: f64) -> Order {
        self.since_s += dt_s;
        let heat = match order {
            Order::Run => 1.0,
            Order::Slow(duty) => duty.share(),
            // A waiting card draws the same under any limit.
            Order::Pause | Order::Stop { .. } => return order,
        };
        let most_w = if heat >= 1.0 { self.range.most_w } else { heat * self.full_w() };
        let wanted_w = most_w.clamp(self.range.least_w, self.range.most_w);
        let step_w = STEP * self.full_w();
        let is_due = match wanted_w - self.limit_w {
            lower if lower <= -step_w => true,
            higher => higher >= step_w.min(self.range.most_w - self.limit_w) && higher > 0.0 && self.since_s >= RAISE_S,
        };
        if is_due {
            (self.limit_w, self.since_s) = (wanted_w, 0.0);
        }
        match heat / self.cap() {
            duty if duty >= Duty::MOST => Order::Run,
            duty => Order::Slow(Duty::new(duty)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(share: f64) -> Order {
        Order::Slow(Duty::new(share))
    }

    #[test]
    fn the_limit_falls_first_and_pauses_come_below_it() {
        let mut split = Split::new(PowerRange { least_w: 100.0, most_w: 200.0 });
        split.observe_power(Some(160.0), 1.0, 1000.0);
        assert_eq!((split.carry_out(slow(0.8), 1.0), split.limit_w()), (Order::Run, 128.0));
        let order = split.carry_out(slow(0.5), 1.0);
        assert_eq!((split.limit_w(), split.is_lowest()), (100.0, true));
        assert!((order.share() - 0.8).abs() < 1e-9, "{order:?}: half of the heat is 0.8 of 100 W of 160");
        // The limit rises again, but not at once, and not above the original one.
        assert_eq!((split.carry_out(Order::Run, 1.0), split.limit_w()), (Order::Run, 100.0));
        split.carry_out(Order::Run, RAISE_S);
        assert_eq!(split.limit_w(), 200.0);
    }

    #[test]
    fn pauses_absorb_small_changes_and_do_not_change_the_limit() {
        let mut split = Split::new(PowerRange { least_w: 50.0, most_w: 200.0 });
        split.carry_out(slow(0.7), 1.0);
        let limit_w = split.limit_w();
        split.carry_out(slow(0.698), 1.0);
        assert_eq!(split.limit_w(), limit_w);
        assert_eq!((split.carry_out(Order::Pause, 1.0), split.limit_w()), (Order::Pause, limit_w));
    }

    #[test]
    fn draw_at_full_speed_is_not_measured_while_the_card_is_limited() {
        let mut split = Split::new(PowerRange { least_w: 50.0, most_w: 200.0 });
        split.observe_power(Some(20.0), 1.0, 1000.0);
        split.observe_power(Some(f64::NAN), 1.0, 1000.0);
        split.observe_power(Some(100.0), 0.5, 1000.0);
        assert_eq!(split.full_w(), 200.0);
        split.carry_out(slow(0.7), 1.0);
        split.observe_power(Some(140.0), 1.0, 1000.0);
        assert_eq!(split.full_w(), 200.0);
    }
}
