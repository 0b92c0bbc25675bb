//! A day of a run under a guard: what became of it.

use crate::plant::{Limited, Plant};
use crate::reference::limits;
use crate::rng::Rng;
use crate::scenario::{Card, Scenario};
use crate::sensor::Fault;
use crate::weather::DAY_S;
use crate::work::Work;
use plimsoll_heat::{Guard, Limits, Note, Order, PowerRange, Reading, What};
use plimsoll_units::Seconds;

/// How long a simulated step is at most, s.
const STEP_S: f64 = 1.0;

/// How often the weather is looked at, s.
const WEATHER_EVERY_S: f64 = 10.0;

/// From when on a duty is taken to be steady, s after slowing began.
const STEADY_S: f64 = 2.0 * 3600.0;

/// A change of the duty that counts as one.
const SWING: f64 = 0.05;

/// What became of a day.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// What was computed, of what a day at full speed computes.
    pub share: f64,
    /// Samples in a row at which a card was above its maximum: the longest such row, and without those that were taken
    /// while the micro-batch was in flight in which the row began.
    pub above: u32,
    pub above_after_batch: u32,
    /// When the guard stopped the run, s.
    pub stopped_s: Option<f64>,
    /// How often the duty turned by at least `SWING`, an hour, once it was steady, two hours after slowing began, and how far it went in all. Short
    /// pauses that test sensors are no duty, nor are longer ones, which are noted.
    pub turns_per_h: f64,
    pub swing: f64,
    /// Pauses because of heat, once it was steady.
    pub pauses: usize,
    pub notes: Vec<Note>,
    /// The same with their times, s.
    pub timed: Vec<(f64, Note)>,
    /// How often a power limit was set, and whether one was beyond what the card takes.
    pub limits_set: u32,
    pub beyond_range: bool,
}

/// Lives through a day; with `power`, the cards' power limits may be lowered.
pub fn live(scenario: &Scenario, power: bool) -> Outcome {
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
            // Cards work in step: the faster ones wait for the slowest.
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
                let limit_w = guard.power_limit_w(at).expect("it may be lowered");
                let range = ranges[at].expect("it may be lowered");
                outcome.beyond_range |= !(range.least_w..=range.most_w).contains(&limit_w);
                if limit_w != limits_w[at] {
                    (*under, limits_w[at]) = (card.build.under(limit_w), limit_w);
                    outcome.limits_set += 1;
                }
            }
        }
        let notes = guard.take_notes();
        let slows = |what: &What| matches!(what, What::Slows { .. } | What::LimitsPower { .. });
        if notes.iter().any(|n| slows(&n.what)) {
            (steady_s, turns, outcome.pauses) = (time_s + STEADY_S, Turns::default(), 0);
        }
        if time_s > steady_s {
            let speed = under.iter().map(|(speed, _)| *speed).fold(1.0, f64::min);
            turns.add(order.share() * speed);
            outcome.pauses += notes.iter().filter(|n| matches!(n.what, What::Pauses { .. })).count();
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
    /// How often something of this kind was noted.
    pub fn count(&self, kind: impl Fn(&What) -> bool) -> usize {
        self.notes.iter().filter(|note| kind(&note.what)).count()
    }
}

/// Whether a card is above a maximum, of what is read by anybody.
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
        // Cards lower their clocks by themselves from 90 °C or so, which is above where a run stops.
        throttling: Some(plant.core_c > 90.0),
        power_w: Some(plant.power_w),
    }
}

/// Rows of samples above a maximum.
#[derive(Debug, Default)]
struct Rows {
    length: u32,
    after_batch: u32,
    /// The micro-batch in which the row began, as long as it is in flight.
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

/// Turns of a series, small ones left out.
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
