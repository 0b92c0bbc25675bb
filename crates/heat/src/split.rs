//! How a card is slowed that takes a power limit: by the limit as far down as it goes, and by pauses below that. A chip that
//! may draw less lowers its voltage with its clocks, so it loses less speed than heat; a pause loses as much of both.
//!
//! ```text
//!   heat that is allowed, of what the card makes at full speed
//!   1 ───── limit falls, no pauses ───── least limit ───── pauses ───── 0
//! ```
//! Not here: how much heat is allowed. Read next: `card.rs`.

use crate::order::{Duty, Order};
use crate::trend::weight;

/// By how much a limit changes at least, of what the card draws at full speed: less is noise. It is less than what the duty may be
/// ahead of what is carried out (`STEP` of `throttle.rs`).
const STEP: f64 = 0.005;

/// Time between two limits of which the second is higher, s.
const RAISE_S: f64 = 10.0;

/// Time over which what a card draws at full speed is taken, s.
const FULL_S: f64 = 20.0;

/// The least part of its limit that a card draws which computes; what draws less waits for something.
const LEAST_DRAW: f64 = 0.3;

/// The power limits that a card may be given, W.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PowerRange {
    /// The least.
    pub least_w: f64,
    /// What it has when nothing is hot; never more.
    pub most_w: f64,
}

/// A card's limit, and what is left to pauses.
#[derive(Debug, Clone)]
pub(crate) struct Split {
    range: PowerRange,
    /// What it draws at full speed, W, as far as it was seen.
    full_w: Option<f64>,
    limit_w: f64,
    since_s: f64,
}

impl Split {
    pub(crate) fn new(range: PowerRange) -> Self {
        Self { range, full_w: None, limit_w: range.most_w, since_s: RAISE_S }
    }

    /// The limit, W.
    pub(crate) fn limit_w(&self) -> f64 {
        self.limit_w
    }

    /// Whether it is as low as it goes.
    pub(crate) fn is_least(&self) -> bool {
        self.limit_w <= self.range.least_w
    }

    /// The part of its heat that the card makes under its limit while it computes.
    pub(crate) fn cap(&self) -> f64 {
        (self.limit_w / self.full_w()).clamp(Duty::LEAST, 1.0)
    }

    fn full_w(&self) -> f64 {
        self.full_w.unwrap_or(self.range.most_w)
    }

    /// What the card draws, W, and the part of the time that it was allowed to compute.
    pub(crate) fn look(&mut self, power_w: Option<f64>, duty: f64, dt_s: f64) {
        let is_free = duty >= 1.0 && self.limit_w >= self.range.most_w;
        let plausible = |watts: &f64| (LEAST_DRAW * self.range.most_w..=1.2 * self.range.most_w).contains(watts);
        if let Some(watts) = power_w.filter(|watts| is_free && plausible(watts)) {
            let full_w = self.full_w.unwrap_or(watts);
            self.full_w = Some(full_w + weight(dt_s, FULL_S) * (watts - full_w));
        }
    }

    /// Carries out an order about heat: moves the limit, and returns what is left to pauses.
    pub(crate) fn carry_out(&mut self, order: Order, dt_s: f64) -> Order {
        self.since_s += dt_s;
        let heat = match order {
            Order::Run => 1.0,
            Order::Slow(duty) => duty.share(),
            // A card that waits draws no more under one limit than under another.
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
        split.look(Some(160.0), 1.0, 1000.0);
        assert_eq!((split.carry_out(slow(0.8), 1.0), split.limit_w()), (Order::Run, 128.0));
        let order = split.carry_out(slow(0.5), 1.0);
        assert_eq!((split.limit_w(), split.is_least()), (100.0, true));
        assert!((order.share() - 0.8).abs() < 1e-9, "{order:?}: half of the heat is 0.8 of 100 W of 160");
        // It is raised again, but not at once, and not beyond what it was.
        assert_eq!((split.carry_out(Order::Run, 1.0), split.limit_w()), (Order::Run, 100.0));
        split.carry_out(Order::Run, RAISE_S);
        assert_eq!(split.limit_w(), 200.0);
    }

    #[test]
    fn small_changes_are_left_to_pauses_and_pauses_leave_the_limit() {
        let mut split = Split::new(PowerRange { least_w: 50.0, most_w: 200.0 });
        split.carry_out(slow(0.7), 1.0);
        let limit_w = split.limit_w();
        split.carry_out(slow(0.698), 1.0);
        assert_eq!(split.limit_w(), limit_w);
        assert_eq!((split.carry_out(Order::Pause, 1.0), split.limit_w()), (Order::Pause, limit_w));
    }

    #[test]
    fn what_a_card_draws_at_full_speed_is_not_learned_while_it_is_held_back() {
        let mut split = Split::new(PowerRange { least_w: 50.0, most_w: 200.0 });
        split.look(Some(20.0), 1.0, 1000.0);
        split.look(Some(f64::NAN), 1.0, 1000.0);
        split.look(Some(100.0), 0.5, 1000.0);
        assert_eq!(split.full_w(), 200.0);
        split.carry_out(slow(0.7), 1.0);
        split.look(Some(140.0), 1.0, 1000.0);
        assert_eq!(split.full_w(), 200.0);
    }
}
