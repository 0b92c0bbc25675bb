//! What is made of each sample of a run's card and machine: orders, a power limit, findings, energy. It runs on the thread that
//! samples. Not here: the decisions themselves (`plimsoll-heat`, `plimsoll-health`, `plimsoll-power`).

use super::heat_words::told_words;
use super::watch::{Shared, State};
use crate::cli::power::Set;
use crate::report::health_event;
use plimsoll_health::{Settings as HealthSettings, Watcher};
use plimsoll_heat::{Digest, Guard, Limits, PowerRange, Reading, Settings, Thresholds};
use plimsoll_power::{Knob, Meter, Price, Step};
use plimsoll_telemetry::{CardSample, EnergyUse, Event, Sample, Throttling};
use plimsoll_units::Seconds;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two events of energy.
const ENERGY_EVERY: Duration = Duration::from_secs(60);

/// Milliwatts of a watt.
const MW: f64 = 1000.0;

/// A run's card and machine over time.
pub(super) struct Watched {
    /// The card, if the run is on one.
    uuid: Option<String>,
    settings: Settings,
    /// Once the card has told a temperature.
    guard: Option<Guard>,
    digest: Digest,
    /// Whether it was said that heat is not watched.
    is_said: bool,
    health: Watcher,
    meter: Meter,
    price: Option<Price>,
    /// When energy was told last.
    told: Duration,
    power: Option<Arc<Set>>,
    /// The power limit that was set last for heat, mW.
    limit_mw: Option<i64>,
}

impl Watched {
    pub(super) fn new(
        uuid: Option<String>,
        settings: Settings,
        health: HealthSettings,
        meter: Meter,
        price: Option<Price>,
        power: Option<Arc<Set>>,
    ) -> Self {
        Self {
            uuid,
            settings,
            guard: None,
            digest: Digest::default(),
            is_said: false,
            health: Watcher::new(health),
            meter,
            price,
            told: Duration::ZERO,
            power,
            limit_mw: None,
        }
    }

    /// What was used so far, with its price.
    pub(super) fn energy(&self) -> Option<EnergyUse> {
        let used = self.meter.used()?;
        Some(match &self.price {
            None => used,
            Some(price) => {
                EnergyUse { cost: Some(price.of_joules(used.energy_j)), currency: price.currency.clone(), ..used }
            }
        })
    }

    /// A sample, so long after the run began.
    pub(super) fn observe(&mut self, sample: &Sample, time: Duration, shared: &Shared) {
        let now = Seconds(time.as_secs_f64());
        self.meter.observe(now, sample);
        let card = self.uuid.as_ref().map(|uuid| sample.cards.iter().find(|card| card.uuid == *uuid));
        let facts = shared.lock().facts;
        let episodes = self.health.observe(now, sample, Some(&facts));
        let mut told = episodes.iter().map(health_event).collect::<Vec<_>>();
        // A card is told what to do before the run waits for its state.
        if let Some(card) = card {
            self.observe_heat(card, now, shared, &mut told);
        }
        let mut state = shared.lock();
        state.energy = self.energy();
        if time.saturating_sub(self.told) >= ENERGY_EVERY {
            self.told = time;
            told.extend(state.energy.clone().map(Event::Energy));
        }
        told.into_iter().for_each(|event| state.tell(event));
    }

    fn observe_heat(&mut self, card: Option<&CardSample>, now: Seconds, shared: &Shared, told: &mut Vec<Event>) {
        if self.guard.is_none() {
            self.guard = card.filter(|card| card.temperature_c.is_some()).and_then(|card| self.guard_of(card));
        }
        let name = card.map_or_else(|| "the card".to_owned(), |card| format!("card {} ({})", card.index, card.name));
        let heat = |what: String| Event::Heat { card: name.clone(), what };
        let Some(guard) = &mut self.guard else {
            if !std::mem::replace(&mut self.is_said, true) {
                told.push(heat("tells no temperature: heat is not watched".to_owned()));
            }
            return;
        };
        let batch = shared.lock().batch.take();
        if let Some(took) = batch {
            guard.micro_batch(Seconds(took.as_secs_f64()));
        }
        let order = guard.observe(now, &[card.map(reading_of).unwrap_or_default()]);
        give(&mut shared.lock(), order);
        shared.ordered();
        let notes = guard.take_notes().into_iter().filter_map(|note| self.digest.take(now, note));
        told.extend(notes.filter_map(|note| told_words(&note)).map(&heat));
        let limit_mw = guard.power_limit_w(0).map(|watts| (watts * MW).round() as i64);
        if let (Some(set), Some(limit_mw)) = (&self.power, limit_mw.filter(|limit| Some(*limit) != self.limit_mw)) {
            self.limit_mw = Some(limit_mw);
            let lost = match set.held.step(Knob::PowerLimit, limit_mw) {
                Step::Set(_) | Step::Nothing => return,
                Step::ChangedByOthers(now) => {
                    format!("somebody else set its power limit to {:.0} W, which stays", now as f64 / MW)
                }
                Step::Failed(reason) => format!("its power limit can't be moved any longer: {reason}"),
            };
            guard.lose_power(0);
            told.push(heat(format!("{lost}; from now on pauses alone slow the run")));
        }
    }

    fn guard_of(&self, card: &CardSample) -> Option<Guard> {
        let thresholds = Thresholds {
            slowdown_c: card.limits.slowdown_c,
            shutdown_c: card.limits.shutdown_c,
            memory_slowdown_c: card.limits.memory_slowdown_c,
        };
        let watts = |milliwatts: i64| milliwatts as f64 / MW;
        let power = self.power.as_ref().filter(|set| set.uuid() == card.uuid).and_then(|set| set.auto);
        let power = power.map(|range| PowerRange { least_w: watts(range.least), most_w: watts(range.most) });
        // The settings were accepted before the run began.
        Some(Guard::new(&[Limits::new(&self.settings, &thresholds).ok()?]).with_power(&[power]))
    }
}

fn give(state: &mut State, order: plimsoll_heat::Order) {
    state.order = Some((order, Instant::now()));
}

fn reading_of(card: &CardSample) -> Reading {
    Reading {
        core_c: card.temperature_c,
        memory_c: card.memory_temperature_c,
        hotspot_c: card.hotspot_temperature_c,
        throttling: card.throttling.map(Throttling::is_thermal),
        power_w: card.power_w,
    }
}
