//! Between who watches cards, on a thread of their own, and the supervisor: orders how fast programs may go, and what is to be
//! told of cards.

use super::turns::Turns;
use plimsoll_heat::Order;
use plimsoll_units::Seconds;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What is told is kept until the supervisor takes it, and no more than this of it.
const NOTES: usize = 256;

/// The supervisor looks far more often than this, unless it was stopped, or the machine slept: such time makes no order old.
const AWAKE: Duration = Duration::from_secs(1);

/// Where a supervisor is told how fast its programs may go.
#[derive(Debug, Clone)]
pub struct Pacer {
    shared: Arc<Mutex<Shared>>,
    lasts: Duration,
    code: i32,
}

#[derive(Debug, Default)]
struct Shared {
    /// Of each worker, from its first on.
    orders: Vec<Option<Order>>,
    /// How often orders were given.
    given: u64,
    notes: VecDeque<(String, String)>,
}

impl Pacer {
    /// For a run of so many workers, which are given an order each `every`. `code`: the exit code of a run that is stopped.
    pub fn new(workers: usize, every: Seconds, code: i32) -> Self {
        let shared = Shared { orders: vec![None; workers], ..Shared::default() };
        let lasts = Duration::from_secs_f64(Order::lasts(every).0);
        Self { shared: Arc::new(Mutex::new(shared)), lasts, code }
    }

    /// An order for these workers. It holds until the next; `Stop` ends the run.
    pub fn give(&self, workers: &[usize], order: Order) {
        let mut shared = self.lock();
        shared.given += 1;
        for &worker in workers {
            if let Some(place) = shared.orders.get_mut(worker) {
                *place = Some(order);
            }
        }
    }

    /// Tells something of a card.
    pub fn tell(&self, card: String, what: String) {
        let mut shared = self.lock();
        if shared.notes.len() < NOTES {
            shared.notes.push_back((card, what));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a program runs in one piece under this order: before that its card does not cool. None where it is not slowed.
pub fn run_slice(order: Order) -> Option<Seconds> {
    match order {
        Order::Slow(duty) => Some(Seconds(Turns::slices(duty.share())[0].as_secs_f64())),
        Order::Run | Order::Pause | Order::Stop { .. } => None,
    }
}

/// A supervisor's side of a pacer.
#[derive(Debug)]
pub(crate) struct Pacing {
    pacer: Pacer,
    turns: Vec<Turns>,
    given: u64,
    looked: Instant,
    /// How long nobody has given an order, as far as this process was awake.
    age: Duration,
}

/// What is so now.
pub(crate) struct Pace {
    /// Cards, and what happened to them.
    pub(crate) notes: VecDeque<(String, String)>,
    /// Whether each worker is to be stopped.
    pub(crate) is_stopped: Vec<bool>,
    /// Whether orders have just become too old.
    pub(crate) has_become_silent: bool,
    /// The exit code of a run that is to end now, for heat.
    pub(crate) ends: Option<i32>,
}

impl Pacing {
    pub(crate) fn new(pacer: Pacer, now: Instant) -> Self {
        let turns = vec![Turns::Free; pacer.lock().orders.len()];
        Self { pacer, turns, given: 0, looked: now, age: Duration::ZERO }
    }

    pub(crate) fn look(&mut self, now: Instant) -> Pace {
        let mut shared = self.pacer.lock();
        let was_silent = self.age > self.pacer.lasts;
        self.age += (now - self.looked).min(AWAKE);
        self.looked = now;
        if shared.given == 0 || shared.given != self.given {
            (self.given, self.age) = (shared.given, Duration::ZERO);
        }
        let is_silent = self.age > self.pacer.lasts;
        let mut ends = None;
        for (turns, order) in self.turns.iter_mut().zip(&shared.orders) {
            let order = order.unwrap_or(Order::Run);
            let share = if is_silent { order.stale().share() } else { order.share() };
            *turns = turns.at(share, now);
            if let Order::Stop { .. } = order {
                ends = Some(self.pacer.code);
            }
        }
        Pace {
            notes: std::mem::take(&mut shared.notes),
            is_stopped: self.turns.iter().map(|turns| turns.is_stopped()).collect(),
            has_become_silent: is_silent && !was_silent,
            ends,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(500);

    #[test]
    fn orders_that_nobody_renews_leave_half_of_the_time_and_that_is_said_once() {
        let pacer = Pacer::new(2, Seconds(1.0), 6);
        let mut now = Instant::now();
        let mut pacing = Pacing::new(pacer.clone(), now);
        // Until the first order nobody waits for one.
        for _ in 0..100 {
            now += MOMENT;
            let pace = pacing.look(now);
            assert!(!pace.has_become_silent && pace.is_stopped == [false; 2]);
        }
        pacer.give(&[0, 1], Order::Run);
        let (mut silences, mut stopped) = (0, 0);
        for _ in 0..140 {
            now += MOMENT;
            let pace = pacing.look(now);
            silences += usize::from(pace.has_become_silent);
            stopped += usize::from(pace.is_stopped[0]);
            assert_eq!(pace.is_stopped[0], pace.is_stopped[1], "they share a card");
        }
        assert_eq!((silences, stopped), (1, 40), "half of the 40 seconds after 30");
        pacer.give(&[1], Order::Run);
        assert_eq!(pacing.look(now).is_stopped, [false; 2]);
    }

    #[test]
    fn an_hour_in_which_the_supervisor_was_stopped_makes_no_order_old() {
        let pacer = Pacer::new(1, Seconds(1.0), 6);
        let mut now = Instant::now();
        let mut pacing = Pacing::new(pacer.clone(), now);
        pacer.give(&[0], Order::Run);
        pacing.look(now);
        now += Duration::from_secs(3600);
        let pace = pacing.look(now);
        assert!(!pace.has_become_silent && !pace.is_stopped[0]);
    }

    #[test]
    fn one_card_that_is_too_hot_ends_the_run_and_others_are_let_alone() {
        let pacer = Pacer::new(2, Seconds(1.0), 6);
        let now = Instant::now();
        let mut pacing = Pacing::new(pacer.clone(), now);
        pacer.give(&[0], Order::Pause);
        let pace = pacing.look(now);
        assert_eq!((pace.is_stopped, pace.ends), (vec![true, false], None));
        let why = plimsoll_heat::TooHot { card: 0, sensor: plimsoll_heat::Sensor::Core, celsius: 90.0, max_c: 83.0 };
        pacer.give(&[0, 9], Order::Stop { why });
        assert_eq!(pacing.look(now).ends, Some(6));
    }
}
