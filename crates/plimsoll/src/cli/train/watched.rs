//! What is made of each sample of a run's card and machine: orders, a power limit, findings, energy. It runs on the thread that
//! samples. Not here: the decisions themselves (`plimsoll-heat`, `plimsoll-health`, `plimsoll-power`).

use super::watch::{Shared, State};
use crate::cli::heat::{Guarded, Told};
use crate::cli::power::Set;
use plimsoll_health::{Settings as HealthSettings, Watcher};
use plimsoll_heat::{PowerRange, Settings};
use plimsoll_power::{Knob, Meter, Price, Step};
use plimsoll_render::health_event;
use plimsoll_telemetry::{CardSample, EnergyUse, Event, Sample};
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
    guarded: Option<Guarded>,
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
            guarded: uuid.map(|uuid| Guarded::new([uuid], settings, "the run saves and ends")),
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
        let facts = shared.lock().facts;
        let episodes = self.health.observe(now, sample, Some(&facts));
        let mut told = episodes.iter().map(health_event).collect::<Vec<_>>();
        // A card is told what to do before the run waits for its state.
        self.observe_heat(sample, now, shared, &mut told);
        let mut state = shared.lock();
        state.energy = self.energy();
        if time.saturating_sub(self.told) >= ENERGY_EVERY {
            self.told = time;
            told.extend(state.energy.clone().map(Event::Energy));
        }
        told.into_iter().for_each(|event| state.tell(event));
    }

    fn observe_heat(&mut self, sample: &Sample, now: Seconds, shared: &Shared, told: &mut Vec<Event>) {
        let Some(guarded) = &mut self.guarded else { return };
        let batch = shared.lock().batch.take();
        if let Some(took) = batch {
            guarded.guard().micro_batch(Seconds(took.as_secs_f64()));
        }
        let power = self.power.as_ref();
        let (order, notes) = guarded.observe(sample, now, |card| range_of(power?, card));
        told.extend(notes.into_iter().map(heat));
        let Some(order) = order else { return };
        give(&mut shared.lock(), order);
        shared.ordered();
        let limit_mw = guarded.guard().power_limit_w(0).map(|watts| (watts * MW).round() as i64);
        if let (Some(set), Some(limit_mw)) = (power, limit_mw.filter(|limit| Some(*limit) != self.limit_mw)) {
            self.limit_mw = Some(limit_mw);
            let lost = match set.held.step(Knob::PowerLimit, limit_mw) {
                Step::Set(_) | Step::Nothing => return,
                Step::ChangedByOthers(now) => {
                    format!("somebody else set its power limit to {:.0} W, which stays", now as f64 / MW)
                }
                Step::Failed(reason) => format!("its power limit can't be moved any longer: {reason}"),
            };
            guarded.guard().lose_power(0);
            told.push(heat(guarded.tell(0, format!("{lost}; from now on pauses alone slow the run"))));
        }
    }
}

/// Within which bounds a card's power limit is lowered for heat; none where it is not.
fn range_of(set: &Set, card: &CardSample) -> Option<PowerRange> {
    let watts = |milliwatts: i64| milliwatts as f64 / MW;
    let range = set.auto.filter(|_| set.uuid() == card.uuid)?;
    Some(PowerRange { least_w: watts(range.least), most_w: watts(range.most) })
}

fn heat(told: Told) -> Event {
    Event::Heat { card: told.card, what: told.what }
}

fn give(state: &mut State, order: plimsoll_heat::Order) {
    state.order = Some((order, Instant::now()));
}
