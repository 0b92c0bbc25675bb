//! The cards of a run under one guard.

use super::words::heat_words;
use plimsoll_heat::{Digest, Guard, Limits, Order, PowerRange, Reading, Settings, Thresholds};
use plimsoll_telemetry::{CardSample, Sample, Throttling};
use plimsoll_units::Seconds;

/// Name of a card that no sample has shown yet.
const THE_CARD: &str = "the GPU";

/// Cards that a run computes on. The hottest one decides.
pub struct Guarded {
    settings: Settings,
    cards: Vec<Card>,
    guard: Guard,
    digest: Digest,
    /// What happens to the run above the maximum, in words.
    end: &'static str,
}

struct Card {
    uuid: String,
    /// Its number and name, once a sample has shown it.
    name: Option<String>,
    /// Its index in the guard, once it has reported a temperature.
    place: Option<usize>,
    /// Whether the message that it reports none was given.
    is_said: bool,
}

/// A message about a card's heat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeatMessage {
    /// The card's number and name.
    pub card: String,
    /// What happened.
    pub what: String,
}

impl Guarded {
    /// Guards the cards with these UUIDs. `settings`: limits that `plimsoll_heat::Limits` accepts; `end`: what happens to the
    /// run above the maximum, as in `the run ends`.
    pub fn new(uuids: impl IntoIterator<Item = String>, settings: Settings, end: &'static str) -> Self {
        let card = |uuid| Card { uuid, name: None, place: None, is_said: false };
        let cards = uuids.into_iter().map(card).collect();
        Self { settings, cards, guard: Guard::new(&[]), digest: Digest::default(), end }
    }

    /// Processes a sample, taken at `now` on a monotonic clock. Returns the order that holds until the next sample (`None`
    /// until a card reports a temperature), and messages. `power`: the bounds within which the power limit of a card may be
    /// lowered for heat.
    pub fn observe(
        &mut self,
        sample: &Sample,
        now: Seconds,
        power: impl Fn(&CardSample) -> Option<PowerRange>,
    ) -> (Option<Order>, Vec<HeatMessage>) {
        let mut told = Vec::new();
        for index in 0..self.cards.len() {
            let found = sample.cards.iter().find(|card| card.uuid == self.cards[index].uuid);
            self.look(index, found, &power, &mut told);
        }
        let watched = self.cards.iter().filter(|card| card.place.is_some()).count();
        if watched == 0 {
            return (None, told);
        }
        let mut readings = vec![Reading::default(); watched];
        for card in &self.cards {
            let found = sample.cards.iter().find(|sampled| sampled.uuid == card.uuid);
            if let (Some(place), Some(found)) = (card.place, found) {
                readings[place] = reading_of(found);
            }
        }
        let order = self.guard.observe(now, &readings);
        for note in self.guard.take_notes() {
            let Some(note) = self.digest.take(now, note) else { continue };
            let reasons = self.reasons(sample, note.note.card);
            told.extend(heat_words(&note, self.end, &reasons).map(|what| self.tell(note.note.card, what)));
        }
        (Some(order), told)
    }

    /// Why the card at this index of the guard lowers its own clocks for heat, if it does.
    fn reasons(&self, sample: &Sample, place: usize) -> Vec<&'static str> {
        let card = self.cards.iter().find(|card| card.place == Some(place));
        let found = card.and_then(|card| sample.cards.iter().find(|sampled| sampled.uuid == card.uuid));
        found.and_then(|found| found.throttling).map(Throttling::thermal_reasons).unwrap_or_default()
    }

    /// The guard. Its cards are in the order in which they first reported a temperature.
    pub fn guard(&mut self) -> &mut Guard {
        &mut self.guard
    }

    /// A message about the card at this index of the guard.
    pub fn tell(&self, place: usize, what: String) -> HeatMessage {
        let card = self.cards.iter().find(|card| card.place == Some(place));
        HeatMessage { card: card.map_or_else(|| THE_CARD.to_owned(), Card::called), what }
    }

    /// Adds a card to the guard when it first reports a temperature.
    fn look(
        &mut self,
        index: usize,
        found: Option<&CardSample>,
        power: impl Fn(&CardSample) -> Option<PowerRange>,
        told: &mut Vec<HeatMessage>,
    ) {
        let card = &mut self.cards[index];
        if let Some(found) = found {
            card.name.get_or_insert_with(|| format!("GPU {} ({})", found.index, found.name));
        }
        if card.place.is_some() {
            return;
        }
        let limits = found.filter(|found| found.temperature_c.is_some()).and_then(|found| {
            // The settings were accepted before the run began.
            Some((Limits::new(&self.settings, &thresholds(found)).ok()?, power(found)))
        });
        match limits {
            Some((limits, power)) => card.place = Some(self.guard.add(&limits, power)),
            None if !std::mem::replace(&mut card.is_said, true) => {
                let what = "tells no temperature: heat is not watched".to_owned();
                told.push(HeatMessage { card: card.called(), what });
            }
            None => {}
        }
    }
}

impl Card {
    fn called(&self) -> String {
        self.name.clone().unwrap_or_else(|| THE_CARD.to_owned())
    }
}

fn thresholds(card: &CardSample) -> Thresholds {
    Thresholds {
        slowdown_c: card.limits.slowdown_c,
        shutdown_c: card.limits.shutdown_c,
        memory_slowdown_c: card.limits.memory_slowdown_c,
    }
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
