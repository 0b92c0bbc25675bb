//! Passes orders about the speed of programs, and notes about cards, from the thread that watches cards to the
//! supervisor.

use super::turns::Turns;
use plimsoll_heat::Order;
use plimsoll_units::Seconds;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Limit on notes that wait for the supervisor.
const NOTES: usize = 256;

/// Time between checks that counts toward the age of an order. The supervisor checks far more often, unless it was
/// stopped or the machine slept; that time does not age an order.
const AWAKE: Duration = Duration::from_secs(1);

/// Gives orders to a supervisor about the speed of its programs.
#[derive(Debug, Clone)]
pub struct Pacer {
    shared: Arc<Mutex<Shared>>,
    lasts: Duration,
    code: i32,
}

#[derive(Debug, Default)]
struct Shared {
    /// The last order of each worker.
    orders: Vec<Option<Order>>,
    /// Number of orders so far.
    given: u64,
    notes: VecDeque<(String, String)>,
}

impl Pacer {
    /// A pacer for this many workers, which get an order each `every`. `code`: the exit code of a run stopped for heat.
    pub fn new(workers: usize, every: Seconds, code: i32) -> Self {
        let shared = Shared { orders: vec![None; workers], ..Shared::default() };
        let lasts = Duration::from_secs_f64(Order::lasts(every).0);
        Self { shared: Arc::new(Mutex::new(shared)), lasts, code }
    }

    /// Gives an order to these workers. It holds until the next one. `Stop` ends the run.
    pub fn give(&self, workers: &[usize], order: Order) {
        let mut shared = self.lock();
        shared.given += 1;
        for &worker in workers {
            if let Some(place) = shared.orders.get_mut(worker) {
                *place = Some(order);
            }
        }
    }

    /// Adds a note about a card.
    pub fn note(&self, card: String, what: String) {
        let mut shared = self.lock();
        if shared.notes.len() < NOTES {
            shared.notes.push_back((card, what));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The running time per slice under this order, during which the card does not cool; `None` if the order slows nothing.
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
    /// Time since the last order, while this process was awake.
    age: Duration,
}

/// The current pace.
pub(crate) struct Pace {
    /// Notes: card and text.
    pub(crate) notes: VecDeque<(String, String)>,
    /// Whether each worker must be stopped now.
    pub(crate) is_stopped: Vec<bool>,
    /// Whether orders have just become too old.
    pub(crate) has_become_silent: bool,
    /// The exit code if the run must end now for heat.
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
    fn stale_orders_leave_half_of_the_time_and_are_reported_once() {
        let pacer = Pacer::new(2, Seconds(1.0), 6);
        let mut now = Instant::now();
        let mut pacing = Pacing::new(pacer.clone(), now);
        // Orders do not age before the first one.
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
            assert_eq!(pace.is_stopped[0], pace.is_stopped[1], "they share a GPU");
        }
        assert_eq!((silences, stopped), (1, 40), "half of the 40 seconds after 30");
        pacer.give(&[1], Order::Run);
        assert_eq!(pacing.look(now).is_stopped, [false; 2]);
    }

    #[test]
    fn time_while_the_supervisor_was_stopped_does_not_age_an_order() {
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
    fn one_card_that_is_too_hot_ends_the_run() {
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
