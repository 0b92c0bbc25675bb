//! The cards of a run under one guard: samples in; how fast the run may go and what is told of it out.

use super::words::told_words;
use plimsoll_heat::{Digest, Guard, Limits, Order, PowerRange, Reading, Settings, Thresholds};
use plimsoll_telemetry::{CardSample, Sample, Throttling};
use plimsoll_units::Seconds;

/// What a card is called that was never seen.
const THE_CARD: &str = "the card";

/// Cards that a run works on. The hottest of them rules.
pub(in crate::cli) struct Guarded {
    settings: Settings,
    cards: Vec<Card>,
    guard: Guard,
    digest: Digest,
    /// What becomes of the run above the maximum, in words.
    end: &'static str,
}

struct Card {
    uuid: String,
    /// What it is called, once it was seen.
    name: Option<String>,
    /// Where the guard has it, once it has told a temperature.
    place: Option<usize>,
    /// Whether it was said that it tells none.
    is_said: bool,
}

/// What is told of a card.
pub(in crate::cli) struct Told {
    /// Its number and name.
    pub(in crate::cli) card: String,
    pub(in crate::cli) what: String,
}

impl Guarded {
    /// Of these cards, under limits that were accepted. `end`: what becomes of the run above the maximum, as `the run ends`.
    pub(in crate::cli) fn new(uuids: impl IntoIterator<Item = String>, settings: Settings, end: &'static str) -> Self {
        let card = |uuid| Card { uuid, name: None, place: None, is_said: false };
        let cards = uuids.into_iter().map(card).collect();
        Self { settings, cards, guard: Guard::new(&[]), digest: Digest::default(), end }
    }

    /// A sample at this time of a clock that does not jump. Returns the order that holds until the next, once a card is
    /// watched, and what is to be told. `power`: within which bounds the power limit of a card may be lowered for heat.
    pub(in crate::cli) fn observe(
        &mut self,
        sample: &Sample,
        now: Seconds,
        power: impl Fn(&CardSample) -> Option<PowerRange>,
    ) -> (Option<Order>, Vec<Told>) {
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
            told.extend(told_words(&note, self.end, &reasons).map(|what| self.tell(note.note.card, what)));
        }
        (Some(order), told)
    }

    /// Why the card that the guard has in this place lowers its own clocks for heat, if it does.
    fn reasons(&self, sample: &Sample, place: usize) -> Vec<&'static str> {
        let card = self.cards.iter().find(|card| card.place == Some(place));
        let found = card.and_then(|card| sample.cards.iter().find(|sampled| sampled.uuid == card.uuid));
        found.and_then(|found| found.throttling).map(Throttling::thermal_reasons).unwrap_or_default()
    }

    /// The guard, whose cards have the places in which they first told a temperature.
    pub(in crate::cli) fn guard(&mut self) -> &mut Guard {
        &mut self.guard
    }

    /// Something to tell of the card that the guard has in this place.
    pub(in crate::cli) fn tell(&self, place: usize, what: String) -> Told {
        let card = self.cards.iter().find(|card| card.place == Some(place));
        Told { card: card.map_or_else(|| THE_CARD.to_owned(), Card::called), what }
    }

    /// Watches over a card from the sample on in which it first tells a temperature.
    fn look(
        &mut self,
        index: usize,
        found: Option<&CardSample>,
        power: impl Fn(&CardSample) -> Option<PowerRange>,
        told: &mut Vec<Told>,
    ) {
        let card = &mut self.cards[index];
        if let Some(found) = found {
            card.name.get_or_insert_with(|| format!("card {} ({})", found.index, found.name));
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
                told.push(Told { card: card.called(), what });
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
