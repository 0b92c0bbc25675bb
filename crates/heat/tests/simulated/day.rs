//! Simulates a day of a run under a guard.

use crate::plant::{Limited, Plant};
use crate::reference::limits;
use crate::rng::Rng;
use crate::scenario::{Card, Scenario};
use crate::sensor::Fault;
use crate::weather::DAY_S;
use crate::work::Work;
use plimsoll_heat::{Guard, Limits, Note, NoteKind, Order, PowerRange, Reading};
use plimsoll_units::Seconds;

/// Longest simulated step, s.
const STEP_S: f64 = 1.0;

/// Interval between updates of the weather, s.
const WEATHER_EVERY_S: f64 = 10.0;

/// Time after slowing began at which the duty counts as steady, s.
const STEADY_S: f64 = 2.0 * 3600.0;

/// Smallest change of the duty that counts.
const SWING: f64 = 0.05;

/// The result of a simulated day.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Work done, as a fraction of the work of a day at full speed.
    pub share: f64,
    /// The longest row of consecutive samples with a card above its maximum; the second value excludes the samples
    /// taken during the micro-batch in which the row began.
    pub above: u32,
    pub above_after_batch: u32,
    /// When the guard stopped the run, s.
    pub stopped_s: Option<f64>,
    /// Turns of the duty by at least `SWING` per hour, and its range, both once it was steady, two hours after slowing
    /// began. Pauses are excluded: short ones test sensors, and longer ones are noted.
    pub turns_per_h: f64,
    pub swing: f64,
    /// Number of pauses because of heat, once the duty was steady.
    pub pauses: usize,
    pub notes: Vec<Note>,
    /// The notes with their times, s.
    pub timed: Vec<(f64, Note)>,
    /// How many times the power limit was set, and whether one was outside of the card's range.
    pub limits_set: u32,
    pub beyond_range: bool,
}

/// Simulates a day; with `power`, the guard may lower the cards' power limits.
pub fn simulate(scenario: &Scenario, power: bool) -> Outcome {
    let limits = limits();
    let range = |card: &Card| {
        let Limited { least_w, most_w, .. } = card.build.limited();
        power.then_some(PowerRange { least_w, most_w })
    };
    let ranges = scenario.cards.iter().map(range).collect::<Vec<_>>();
    let mut guard = Guard::new(&vec![limits; scenario.cards.len()]).with_power(&ranges);
    let mut under = scenario.cards.iter().map(|card| (1.0, card.build.power_w)).collect::<Vec<_>>();
    guard.micro_batch(Seconds(scenario.batch_s));
    let mut rng = Rng(scenario.seed);
    let mut cards = scenario.cards.clone();
    let mut plants = cards.iter().map(|c| Plant::new(c.build.clone(), c.weather.at(0.0).air_c)).collect::<Vec<_>>();
    let mut work = Work::new(scenario.batch_s, scenario.jitter, Rng(scenario.seed ^ 1));
    let mut readings = vec![Reading::default(); cards.len()];
    let mut limits_w = scenario.cards.iter().map(|card| card.build.limited().most_w).collect::<Vec<_>>();
    let mut around = Vec::new();
    let mut order = Order::Run;
    let mut outcome = Outcome::default();
    let (mut turns, mut rows) = (Turns::default(), Rows::default());
    let (mut time_s, mut weather_due_s, mut computed_s, mut since_s) = (0.0, 0.0, 0.0, 0.0);
    let mut steady_s = STEADY_S;
    let steps = (scenario.sample_s / STEP_S).ceil();
    let for_s = scenario.sample_s / steps;
    while time_s < DAY_S {
        if time_s >= weather_due_s {
            weather_due_s += WEATHER_EVERY_S;
            around.clear();
            around.extend(cards.iter().map(|c| c.weather.at(time_s)));
        }
        for _ in 0..steps as u32 {
            // Cards work in step: faster cards wait for the slowest.
            let speed = under.iter().map(|(speed, _)| *speed).fold(1.0, f64::min);
            let computing = work.step(for_s, order.share(), speed);
            computed_s += computing * for_s * speed;
            for ((around, plant), (own_speed, draw_w)) in around.iter().zip(&mut plants).zip(&under) {
                plant.step(for_s, computing * speed / own_speed, *draw_w, around);
            }
            time_s += for_s;
        }
        since_s += scenario.sample_s;
        let is_above = plants.iter().zip(&cards).any(|(plant, card)| is_above(plant, card, &limits));
        rows.add(is_above, work.in_flight(), &mut outcome);
        if scenario.missed > 0.0 && rng.chance(scenario.missed) {
            continue;
        }
        for ((card, plant), reading) in cards.iter_mut().zip(&plants).zip(&mut readings) {
            *reading = read(card, plant, time_s, since_s);
        }
        since_s = 0.0;
        order = guard.observe(Seconds(time_s), &readings);
        if let Order::Stop { .. } = order {
            outcome.stopped_s = Some(time_s);
            break;
        }
        if power {
            for (at, (under, card)) in under.iter_mut().zip(&cards).enumerate() {
                let limit_w = guard.power_limit_w(at).expect("a limit");
                let range = ranges[at].expect("a limit");
                outcome.beyond_range |= !(range.least_w..=range.most_w).contains(&limit_w);
                if limit_w != limits_w[at] {
                    (*under, limits_w[at]) = (card.build.under(limit_w), limit_w);
                    outcome.limits_set += 1;
                }
            }
        }
        let notes = guard.take_notes();
        let slows = |kind: &NoteKind| matches!(kind, NoteKind::Slows { .. } | NoteKind::LimitsPower { .. });
        if notes.iter().any(|n| slows(&n.what)) {
            (steady_s, turns, outcome.pauses) = (time_s + STEADY_S, Turns::default(), 0);
        }
        if time_s > steady_s {
            let speed = under.iter().map(|(speed, _)| *speed).fold(1.0, f64::min);
            turns.add(order.share() * speed);
            outcome.pauses += notes.iter().filter(|n| matches!(n.what, NoteKind::Pauses { .. })).count();
        }
        outcome.timed.extend(notes.iter().map(|note| (time_s, *note)));
        outcome.notes.extend(notes);
    }
    outcome.notes.append(&mut guard.take_notes());
    outcome.share = computed_s / DAY_S;
    outcome.turns_per_h = f64::from(turns.count) / ((time_s - steady_s).max(3600.0) / 3600.0);
    outcome.swing = (turns.most - turns.least).max(0.0);
    outcome
}

impl Outcome {
    /// Number of notes of this kind.
    pub fn count(&self, kind: impl Fn(&NoteKind) -> bool) -> usize {
        self.notes.iter().filter(|note| kind(&note.what)).count()
    }
}

/// Whether a card is above a maximum of one of the sensors that it has.
fn is_above(plant: &Plant, card: &Card, limits: &Limits) -> bool {
    plant.core_c > limits.core.max_c
        || (card.memory.is_some() && plant.memory_c > limits.memory.max_c)
        || (card.hotspot.is_some() && plant.hotspot_c() > limits.hotspot.max_c)
}

fn read(card: &mut Card, plant: &Plant, time_s: f64, since_s: f64) -> Reading {
    let fault = card.fault.map_or(Fault::None, |f| f.at(time_s));
    Reading {
        core_c: card.core.read(plant.core_c, since_s, fault),
        memory_c: card.memory.as_mut().and_then(|s| s.read(plant.memory_c, since_s, Fault::None)),
        hotspot_c: card.hotspot.as_mut().and_then(|s| s.read(plant.hotspot_c(), since_s, Fault::None)),
        // Cards lower their own clocks from about 90 °C, which is above the maximum of the run.
        throttling: Some(plant.core_c > 90.0),
        power_w: Some(plant.power_w),
    }
}

/// Rows of consecutive samples above a maximum.
#[derive(Debug, Default)]
struct Rows {
    length: u32,
    after_batch: u32,
    /// The micro-batch in which the row began, while it is in flight.
    batch: Option<u64>,
}

impl Rows {
    fn add(&mut self, is_above: bool, in_flight: Option<u64>, outcome: &mut Outcome) {
        if !is_above {
            *self = Self::default();
            return;
        }
        if self.length == 0 {
            self.batch = in_flight;
        }
        self.length += 1;
        self.batch = self.batch.filter(|_| self.batch == in_flight);
        self.after_batch += u32::from(self.batch.is_none());
        outcome.above = outcome.above.max(self.length);
        outcome.above_after_batch = outcome.above_after_batch.max(self.after_batch);
    }
}

/// Turning points of a series, without small ones.
#[derive(Debug)]
struct Turns {
    extreme: Option<f64>,
    rising: bool,
    count: u32,
    least: f64,
    most: f64,
}

impl Default for Turns {
    fn default() -> Self {
        Self { extreme: None, rising: false, count: 0, least: f64::INFINITY, most: f64::NEG_INFINITY }
    }
}

impl Turns {
    fn add(&mut self, share: f64) {
        if share == 0.0 {
            return;
        }
        (self.least, self.most) = (self.least.min(share), self.most.max(share));
        let extreme = *self.extreme.get_or_insert(share);
        let further = if self.rising { share > extreme } else { share < extreme };
        if further {
            self.extreme = Some(share);
        } else if (share - extreme).abs() >= SWING {
            self.rising = !self.rising;
            self.count += 1;
            self.extreme = Some(share);
        }
    }
}
