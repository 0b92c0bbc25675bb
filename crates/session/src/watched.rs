//! What each sample of the run's card and system is used for: the speed limit, a power limit, health findings, energy. It runs
//! on the thread that samples. Not here: the decisions themselves (`plimsoll-heat`, `plimsoll-health`, `plimsoll-power`).

use crate::control::{Control, Shared};
use crate::heat::{Guarded, HeatMessage};
use crate::memory::{MemorySettings, MemoryWatch};
use crate::power::{CardPower, milliwatts};
use plimsoll_health::{Episode, Settings as HealthSettings, Watcher};
use plimsoll_power::{Meter, Price};
use plimsoll_telemetry::{EnergyUse, Event, Sample};
use plimsoll_units::Seconds;
use std::sync::Arc;
use std::time::Duration;

/// Time between two energy events.
const ENERGY_EVERY: Duration = Duration::from_secs(60);

/// How a session watches cards and system.
#[derive(Clone)]
pub struct WatchSettings {
    /// Time between two samples.
    pub every: Duration,
    /// Temperatures at which the run is slowed and ended, °C. `plimsoll_heat::Limits` must accept them.
    pub heat: plimsoll_heat::Settings,
    /// Price of energy, if costs are wanted.
    pub price: Option<Price>,
    /// Words a health finding as an event.
    pub health_event: fn(&Episode) -> Event,
    /// How the budget follows the free memory; `None` if it does not.
    pub memory: Option<MemorySettings>,
}

/// The run's card and system over time.
pub(crate) struct Watched {
    /// The card, if the run is on one.
    guarded: Option<Guarded>,
    health: Watcher,
    meter: Meter,
    settings: WatchSettings,
    /// Time of the last energy event.
    energy_told: Duration,
    power: Option<Arc<CardPower>>,
    /// The power limit that was set last for heat, mW.
    limit_mw: Option<i64>,
    memory: Option<MemoryWatch>,
}

impl Watched {
    /// Of a run on the card with this UUID, or on the processor.
    pub(crate) fn new(
        uuid: Option<String>,
        settings: WatchSettings,
        health: HealthSettings,
        meter: Meter,
        power: Option<Arc<CardPower>>,
    ) -> Self {
        let memory = settings.memory.clone().map(MemoryWatch::new);
        Self {
            guarded: uuid.map(|uuid| Guarded::new([uuid], settings.heat, "the run saves and ends")),
            health: Watcher::new(health),
            meter,
            settings,
            energy_told: Duration::ZERO,
            power,
            limit_mw: None,
            memory,
        }
    }

    /// Energy that was used so far, with its price.
    pub(crate) fn energy(&self) -> Option<EnergyUse> {
        let used = self.meter.used()?;
        Some(match &self.settings.price {
            None => used,
            Some(price) => {
                EnergyUse { cost: Some(price.of_joules(used.energy_j)), currency: price.currency.clone(), ..used }
            }
        })
    }

    /// Processes a sample, taken at this time after the run began.
    pub(crate) fn observe(&mut self, sample: &Sample, time: Duration, control: &Control) {
        let (now, shared) = (Seconds(time.as_secs_f64()), &control.shared);
        if let Some(memory) = &mut self.memory {
            memory.observe(now, sample, control);
        }
        self.meter.observe(now, sample);
        let facts = shared.lock().facts;
        let episodes = self.health.observe(now, sample, Some(&facts));
        let mut events = episodes.iter().map(self.settings.health_event).collect::<Vec<_>>();
        // The card's power limit changes before the run waits for its state.
        self.observe_heat(sample, now, shared, &mut events);
        let mut state = shared.lock();
        state.energy = self.energy();
        if time.saturating_sub(self.energy_told) >= ENERGY_EVERY {
            self.energy_told = time;
            events.extend(state.energy.clone().map(Event::Energy));
        }
        events.into_iter().for_each(|event| state.tell(event));
    }

    fn observe_heat(&mut self, sample: &Sample, now: Seconds, shared: &Shared, events: &mut Vec<Event>) {
        let Some(guarded) = &mut self.guarded else { return };
        let batch = shared.lock().batch.take();
        if let Some(took) = batch {
            guarded.guard().micro_batch(Seconds(took.as_secs_f64()));
        }
        let power = self.power.as_ref();
        let (limit, messages) = guarded.observe(sample, now, |card| power?.range_of(card));
        events.extend(messages.into_iter().map(heat_event));
        let Some(limit) = limit else { return };
        {
            let mut state = shared.lock();
            state.limit = Some((limit, shared.surroundings.now()));
            state.wake();
        }
        let limit_mw = guarded.guard().power_limit_w(0).map(milliwatts);
        if let (Some(power), Some(limit_mw)) = (power, limit_mw.filter(|limit| Some(*limit) != self.limit_mw)) {
            self.limit_mw = Some(limit_mw);
            let Some(why) = power.limit(limit_mw) else { return };
            guarded.guard().lose_power(0);
            events.push(heat_event(guarded.tell(0, format!("{why}; from now on pauses alone slow the run"))));
        }
    }
}

fn heat_event(message: HeatMessage) -> Event {
    Event::Heat { card: message.card, what: message.what }
}
