//! The guard of a run: samples of its cards in, orders out. A state machine that reads no clock and no sensor itself.
//! Not here: how one card is judged (`card.rs`), and who carries orders out: the loop pauses between micro-batches,
//! and its caller ends a run that is stopped.

use crate::card::Card;
use crate::clock::Clock;
use crate::limits::Limits;
use crate::note::{Note, What};
use crate::order::{Order, TooHot};
use crate::reading::Reading;
use crate::split::PowerRange;
use crate::throttle::Pace;
use plimsoll_units::Seconds;

/// The time of a micro-batch until one is told, and the longest that is believed, s.
const BATCH_S: f64 = 1.0;
const LONGEST_BATCH_S: f64 = 600.0;

/// What is left of the time of the longest micro-batch with each shorter one.
const BATCH_FADES: f64 = 0.99;

/// Notes that are kept until they are taken; later ones are lost.
const NOTES: usize = 1024;

/// Watches over the cards of a run. Several cards work in step, so the hottest rules.
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
    /// A guard of these cards. Readings have them in the same order.
    pub fn new(limits: &[Limits]) -> Self {
        let cards = limits.iter().enumerate().map(|(index, limits)| Card::new(index, *limits)).collect();
        Self { cards, clock: Clock::new(), batch_s: None, share: 1.0, stopped: None, notes: Vec::new() }
    }

    /// Watches over one more card from now on; returns its place among the readings.
    pub fn add(&mut self, limits: &Limits, power: Option<PowerRange>) -> usize {
        let index = self.cards.len();
        let mut card = Card::new(index, *limits);
        card.set_power(power);
        self.cards.push(card);
        index
    }

    /// Lets the power limits of cards be lowered instead of pauses, where there are ranges; in the order of the cards.
    #[must_use]
    pub fn with_power(mut self, ranges: &[Option<PowerRange>]) -> Self {
        self.cards.iter_mut().zip(ranges).for_each(|(card, range)| card.set_power(*range));
        self
    }

    /// The power limit of a card can't be moved any longer: from now on pauses alone slow it.
    pub fn lose_power(&mut self, card: usize) {
        if let Some(card) = self.cards.get_mut(card) {
            card.set_power(None);
        }
    }

    /// The power limit that a card is to have until the next sample, W; none where it is not to be moved.
    pub fn power_limit_w(&self, card: usize) -> Option<f64> {
        self.cards.get(card).and_then(Card::limit_w)
    }

    /// Tells how long a micro-batch took: nothing can be paused before it ends, so the guard looks as far ahead.
    /// Until it is told, it takes one second. What is no duration is ignored.
    pub fn micro_batch(&mut self, took: Seconds) {
        if took.0.is_finite() && took.0 > 0.0 {
            let faded = self.batch_s.map_or(0.0, |longest| longest * BATCH_FADES);
            self.batch_s = Some(took.0.min(LONGEST_BATCH_S).max(faded));
        }
    }

    /// A sample: what each card says at this time, in seconds of any clock. A card without a reading is silent; readings
    /// beyond the guard's cards are ignored. The order holds until the next sample. `Stop` is final.
    pub fn observe(&mut self, time: Seconds, readings: &[Reading]) -> Order {
        if let Some(why) = self.stopped {
            return Order::Stop { why };
        }
        let tick = self.clock.tick(time);
        let notes = &mut self.notes;
        let mut note = |card: usize, what: What| {
            if notes.len() < NOTES {
                notes.push(Note { card, what });
            }
        };
        if let Some(by) = tick.tell {
            note(0, What::ClockJumped { by });
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

    /// What happened since this was last asked.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }
}
