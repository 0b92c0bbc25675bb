//! The one entry: samples and facts go in, episodes come out.

use crate::card::Card;
use crate::condition::Change;
use crate::finding::{Episode, Finding, Phase};
use crate::machine::Machine;
use crate::usage::Usage;
use plimsoll_telemetry::Sample;
use plimsoll_units::{Bytes, Seconds};
use std::collections::BTreeMap;

/// More cards than any machine has.
const CARDS: usize = 1024;

/// What is watched.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The UUIDs of the cards that are watched; none: all.
    pub cards: Option<Vec<String>>,
    /// Whether somebody else tells of heat (`plimsoll-heat`).
    pub is_guarded: bool,
    /// The process that runs on them, which others are told from.
    pub own_pid: Option<u32>,
    /// Whether the run leaves work to the host.
    pub offloads: bool,
    /// Whether the run takes the machine's memory by plan, as one on the processor does: then only waiting for it counts.
    pub takes_memory: bool,
}

/// What a run says of itself, since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Facts {
    /// Steps that were made.
    pub steps: u64,
    /// Time in which it waited for its next batch, s.
    pub waited_for_data_s: f64,
    /// Time in which it waited for a card to cool, s.
    pub held_back_s: f64,
    /// What its next checkpoint takes of the disk.
    pub checkpoint: Option<Bytes>,
}

/// Watches cards and machine.
#[derive(Debug, Clone)]
pub struct Watcher {
    settings: Settings,
    cards: BTreeMap<String, (Card, Usage)>,
    machine: Machine,
}

impl Watcher {
    /// Nothing is known yet.
    pub fn new(settings: Settings) -> Self {
        Self { settings, cards: BTreeMap::new(), machine: Machine::default() }
    }

    /// A sample at this time of a clock that does not jump, and what the run says, if one is watched.
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
            let mut tell = |finding: Finding, change: Change| found.push((finding, change));
            card.observe(time.0, now, settings.is_guarded, &mut tell);
            if let (Some(now), Some(facts)) = (now.filter(|now| now.lost.is_none()), facts) {
                usage.observe(time.0, (card, now), facts, settings, &mut tell);
            }
            episodes.extend(found.into_iter().map(|found| episode(Some(card.name.clone()), found)));
        }
        let mut tell = |finding: Finding, change: Change| episodes.push(episode(None, (finding, change)));
        let checkpoint = facts.and_then(|facts| facts.checkpoint);
        machine.observe(time.0, &sample.system, checkpoint, settings.takes_memory, &mut tell);
        episodes
    }
}

fn episode(card: Option<(u32, String)>, (finding, change): (Finding, Change)) -> Episode {
    let phase = match change {
        Change::Begins => Phase::Begins,
        Change::Ends(after) => Phase::Ends(after),
    };
    Episode { card, finding, phase }
}
