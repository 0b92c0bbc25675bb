//! The entry point: takes samples and facts, returns episodes.

use crate::card::Card;
use crate::condition::Transition;
use crate::finding::{Episode, Finding, Phase};
use crate::machine::Machine;
use crate::run::{Facts, Settings};
use crate::usage::Usage;
use plimsoll_telemetry::Sample;
use plimsoll_units::Seconds;
use std::collections::BTreeMap;

/// Maximum number of cards tracked.
const CARDS: usize = 1024;

/// Watches cards and the machine.
#[derive(Debug, Clone)]
pub struct Watcher {
    settings: Settings,
    cards: BTreeMap<String, (Card, Usage)>,
    machine: Machine,
}

impl Watcher {
    /// Creates a watcher without samples.
    pub fn new(settings: Settings) -> Self {
        Self { settings, cards: BTreeMap::new(), machine: Machine::default() }
    }

    /// Processes a sample at this time of a clock that does not jump, and the counters of the run, if there is one.
    pub fn observe(&mut self, time: Seconds, sample: &Sample, facts: Option<&Facts>) -> Vec<Episode> {
        let Self { settings, cards, machine } = self;
        let mut episodes = Vec::new();
        let is_watched = |uuid: &String| settings.cards.as_ref().is_none_or(|watched| watched.contains(uuid));
        for card in sample.cards.iter().filter(|card| is_watched(&card.uuid)) {
            if cards.len() < CARDS {
                let new = || (Card::named(card.index, &card.name), Usage::default());
                cards.entry(card.uuid.clone()).or_insert_with(new);
            }
        }
        for (uuid, (card, usage)) in cards {
            let now = sample.cards.iter().find(|other| other.uuid == *uuid);
            let mut found = vec![];
            let mut emit = |finding: Finding, change: Transition| found.push((finding, change));
            card.observe(time.0, now, settings.is_guarded, &mut emit);
            if let (Some(now), Some(facts)) = (now.filter(|now| now.lost.is_none()), facts) {
                usage.observe(time.0, (card, now), facts, settings, &mut emit);
            }
            episodes.extend(found.into_iter().map(|found| episode(Some(card.name.clone()), found)));
        }
        let mut emit = |finding: Finding, change: Transition| episodes.push(episode(None, (finding, change)));
        let checkpoint = facts.and_then(|facts| facts.checkpoint);
        machine.observe(time.0, &sample.system, checkpoint, settings.takes_memory, &mut emit);
        episodes
    }
}

fn episode(card: Option<(u32, String)>, (finding, change): (Finding, Transition)) -> Episode {
    let phase = match change {
        Transition::Begins => Phase::Begins,
        Transition::Ends(after) => Phase::Ends(after),
    };
    Episode { card, finding, phase }
}
