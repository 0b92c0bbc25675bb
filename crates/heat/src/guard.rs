//! The guard of a run: takes samples of the run's cards and returns orders. A state machine that reads no clock and no
//! sensor itself.
//! Not here: judging one card (`card.rs`), and carrying out orders: the training loop pauses between micro-batches, and
//! its caller ends a stopped run.

use crate::card::Card;
use crate::clock::Clock;
use crate::limits::Limits;
use crate::note::{Note, NoteKind};
use crate::order::{Order, TooHot};
use crate::pace::Pace;
use crate::reading::Reading;
use crate::split::PowerRange;
use plimsoll_units::Seconds;

/// Assumed duration of a micro-batch before the first measurement, and the longest accepted one, s.
const BATCH_S: f64 = 1.0;
const LONGEST_BATCH_S: f64 = 600.0;

/// Factor by which the longest measured micro-batch decays with each shorter one.
const BATCH_FADES: f64 = 0.99;

/// Maximum number of notes kept until the caller takes them. Further notes are dropped.
const NOTES: usize = 1024;

/// Watches the cards of a run. The cards work in step, so the hottest one determines the order.
#[derive(Debug, Clone)]
pub struct Guard {
    cards: Vec<Card>,
    clock: Clock,
    batch_s: Option<f64>,
    share: f64,
    stopped: Option<TooHot>,
    notes: Vec<Note>,
}

impl Guard {
    /// Creates a guard for these cards. Readings must be in the same order.
    pub fn new(limits: &[Limits]) -> Self {
        let cards = limits.iter().enumerate().map(|(index, limits)| Card::new(index, *limits)).collect();
        Self { cards, clock: Clock::new(), batch_s: None, share: 1.0, stopped: None, notes: Vec::new() }
    }

    /// Adds a card and returns its index among the readings.
    pub fn add(&mut self, limits: &Limits, power: Option<PowerRange>) -> usize {
        let index = self.cards.len();
        let mut card = Card::new(index, *limits);
        card.set_power(power);
        self.cards.push(card);
        index
    }

    /// Allows lowering the power limits of cards with a range, in the order of the cards, before pauses are used.
    #[must_use]
    pub fn with_power(mut self, ranges: &[Option<PowerRange>]) -> Self {
        self.cards.iter_mut().zip(ranges).for_each(|(card, range)| card.set_power(*range));
        self
    }

    /// Call this when a card's power limit can no longer be set: from now on only pauses slow the card.
    pub fn lose_power(&mut self, card: usize) {
        if let Some(card) = self.cards.get_mut(card) {
            card.set_power(None);
        }
    }

    /// The power limit that a card should have until the next sample, W; `None` if the guard may not change it.
    pub fn power_limit_w(&self, card: usize) -> Option<f64> {
        self.cards.get(card).and_then(Card::limit_w)
    }

    /// Records the duration of a micro-batch. A pause cannot begin before the current micro-batch ends, so the guard
    /// looks that far ahead. The default is one second. Invalid durations are ignored.
    pub fn micro_batch(&mut self, took: Seconds) {
        if took.0.is_finite() && took.0 > 0.0 {
            let faded = self.batch_s.map_or(0.0, |longest| longest * BATCH_FADES);
            self.batch_s = Some(took.0.min(LONGEST_BATCH_S).max(faded));
        }
    }

    /// Processes a sample: the reading of each card at this time, in seconds of any clock. A missing reading counts as
    /// silent sensors; readings beyond the guard's cards are ignored. The order is valid until the next sample. `Stop`
    /// is final.
    pub fn observe(&mut self, time: Seconds, readings: &[Reading]) -> Order {
        if let Some(why) = self.stopped {
            return Order::Stop { why };
        }
        let tick = self.clock.tick(time);
        let notes = &mut self.notes;
        let mut note = |card: usize, what: NoteKind| {
            if notes.len() < NOTES {
                notes.push(Note { card, what });
            }
        };
        if let Some(by) = tick.report {
            note(0, NoteKind::ClockJumped { by });
        }
        let batch_s = self.batch_s.unwrap_or(BATCH_S);
        let probing = self.cards.iter().any(Card::is_probing);
        let mut order = Order::Run;
        for (index, card) in self.cards.iter_mut().enumerate() {
            if tick.jumped {
                card.forget();
            }
            let reading = readings.get(index).copied().unwrap_or_default();
            let cap = card.cap();
            let pace = Pace { dt_s: tick.dt_s, batch_s, share: self.share * cap, probing, cap };
            order = order.stricter(card.observe(&reading, &pace, &mut |what| note(index, what)));
        }
        self.share = order.share();
        if let Order::Stop { why } = order {
            self.stopped = Some(why);
        }
        order
    }

    /// Returns the notes since the last call, and clears them.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }
}
