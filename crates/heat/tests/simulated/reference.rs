//! The best possible result of a run: the highest constant share of the time that holds every card at its throttle
//! temperature, found by bisection on the same plants.

use crate::plant::{Around, Plant};
use crate::rng::Rng;
use crate::scenario::{Card, Scenario};
use crate::weather::DAY_S;
use crate::work::Work;
use plimsoll_heat::{Limits, Settings, Thresholds};

/// How long a card takes to settle, and how long it is then observed, s.
const SETTLES_S: f64 = 1800.0;
const WATCHED_S: f64 = 300.0;

/// Number of bisections of the share.
const HALVINGS: u32 = 11;

/// Lowest share that is tried.
const LEAST: f64 = 0.02;

/// The limits of all cards.
pub fn limits() -> Limits {
    Limits::new(&Settings::default(), &Thresholds::default()).expect("the defaults are limits")
}

/// The mean of the best shares at `parts` moments of the day: the best share that is constant within each part, for
/// weather that changes slowly compared with the minutes that cards take to settle.
pub fn best_share_by_parts(scenario: &Scenario, parts: u32) -> f64 {
    let middle_s = |part: u32| (f64::from(part) + 0.5) / f64::from(parts) * DAY_S;
    (0..parts).map(|part| best_share(scenario, middle_s(part))).sum::<f64>() / f64::from(parts)
}

/// The highest constant share that holds all cards in their surroundings at this time; 0 if there is none.
pub fn best_share(scenario: &Scenario, time_s: f64) -> f64 {
    let around = scenario.cards.iter().map(|c| c.weather.at(time_s)).collect::<Vec<_>>();
    if holds(scenario, &around, 1.0) {
        return 1.0;
    }
    if !holds(scenario, &around, LEAST) {
        return 0.0;
    }
    let (mut low, mut high) = (LEAST, 1.0);
    for _ in 0..HALVINGS {
        let middle = (low + high) / 2.0;
        if holds(scenario, &around, middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// Whether all cards, once settled at this share, stay at or below their throttle temperatures.
fn holds(scenario: &Scenario, around: &[Around], share: f64) -> bool {
    let limits = limits();
    // Memory and hot spots without a sensor do not count.
    scenario.cards.iter().zip(around).all(|(card, around)| {
        let mut plant = Plant::new(card.build.clone(), around.air_c);
        // Start near the final temperature, so that the card settles soon.
        plant.sink_c = around.air_c + share * card.build.power_w * card.build.sink_c_per_w * around.dust;
        plant.sink_c = plant.sink_c.min(90.0);
        let mut work = Work::new(scenario.batch_s, 0.0, Rng(1));
        let cycle_s = scenario.batch_s / share;
        let watched_s = WATCHED_S.max(2.0 * cycle_s);
        let mut time_s = 0.0;
        let mut held = true;
        while time_s < SETTLES_S + watched_s && held {
            let computing = work.step(1.0, share, 1.0);
            plant.step(1.0, computing, card.build.power_w, around);
            time_s += 1.0;
            if time_s > SETTLES_S {
                held &= plant.core_c <= limits.core.throttle_c;
                held &= card.memory.is_none() || plant.memory_c <= limits.memory.throttle_c;
                held &= card.hotspot.is_none() || plant.hotspot_c() <= limits.hotspot.throttle_c;
            }
        }
        held
    })
}

/// The highest throughput of steady cards with lowered power limits, relative to full speed: each card at its own best
/// limit, with pauses at the lowest one; the slowest card determines the result.
pub fn best_with_power(scenario: &Scenario) -> f64 {
    let best = |card: &Card| {
        let (mut low, mut high) = (0.0, 1.0);
        if holds_at(scenario, card, 1.0) {
            return 1.0;
        }
        for _ in 0..HALVINGS {
            let middle = (low + high) / 2.0;
            if holds_at(scenario, card, middle) { low = middle } else { high = middle }
        }
        let (speed, duty, _) = split(card, low);
        speed * duty
    };
    scenario.cards.iter().map(best).fold(1.0, f64::min)
}

/// Speed, duty and draw, W, of a card that produces this fraction of its full heat output.
fn split(card: &Card, heat: f64) -> (f64, f64, f64) {
    let wanted_w = heat * card.build.power_w;
    let (speed, draw_w) = card.build.under(wanted_w.max(card.build.limited().least_w));
    (speed, (wanted_w / draw_w).min(1.0), draw_w)
}

/// Whether a card, once settled at this fraction of its full heat output, stays at or below its throttle temperatures.
fn holds_at(scenario: &Scenario, card: &Card, heat: f64) -> bool {
    let (speed, duty, draw_w) = split(card, heat);
    let (limits, around) = (limits(), card.weather.at(0.0));
    let mut plant = Plant::new(card.build.clone(), around.air_c);
    plant.sink_c = around.air_c + heat * card.build.power_w * card.build.sink_c_per_w * around.dust;
    plant.sink_c = plant.sink_c.min(90.0);
    let mut work = Work::new(scenario.batch_s, 0.0, Rng(1));
    let watched_s = WATCHED_S.max(2.0 * scenario.batch_s / (speed * duty.max(LEAST)));
    let mut time_s = 0.0;
    let mut held = true;
    while time_s < SETTLES_S + watched_s && held {
        let computing = work.step(1.0, duty.max(LEAST), speed);
        plant.step(1.0, computing, draw_w, &around);
        time_s += 1.0;
        if time_s > SETTLES_S {
            held &= plant.core_c <= limits.core.throttle_c;
            held &= card.memory.is_none() || plant.memory_c <= limits.memory.throttle_c;
            held &= card.hotspot.is_none() || plant.hotspot_c() <= limits.hotspot.throttle_c;
        }
    }
    held
}
