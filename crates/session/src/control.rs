//! The state that a session, its watcher and its controls share, and the handle that other threads control it by.

use crate::notice::{Notice, Notices};
use crate::orders::{Asked, Change};
use crate::shared_memory::SharedMemory;
use crate::surroundings::Surroundings;
use plimsoll_health::Facts;
use plimsoll_orders::Order;
use plimsoll_plan::Refusal;
use plimsoll_telemetry::{EnergyUse, Event, Sample};
use plimsoll_units::Bytes;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

/// Number of the first order that a [`Control`] gives. Orders in a run's folder have numbers far below.
const FIRST_ORDER: u64 = 1 << 32;

/// Events that wait for the next step, at most.
const EVENTS_MAX: usize = 256;

/// Receives each sample, on the thread that takes samples.
pub type SampleTap = Arc<dyn Fn(&Arc<Sample>) + Send + Sync>;

/// Controls a session from any thread. All clones control the same session.
#[derive(Clone)]
pub struct Control {
    pub(crate) shared: Arc<Shared>,
    pub(crate) notices: Notices,
    next_order: Arc<AtomicU64>,
}

impl Control {
    pub(crate) fn new(notices: Notices, surroundings: Arc<dyn Surroundings>) -> Self {
        let shared = Arc::new(Shared { state: Mutex::default(), surroundings, stop: Arc::default() });
        Self { shared, notices, next_order: Arc::new(AtomicU64::new(FIRST_ORDER)) }
    }

    /// Gives the session an order, as `plimsoll_orders::give` does for a run in another process. A pause takes effect after the
    /// current micro-batch, a stop and a budget after the current step. Returns the order's number, by which events name it;
    /// an order that can't be followed becomes an `OrderRefused` event.
    pub fn order(&self, order: Order) -> u64 {
        let number = self.next_order.fetch_add(1, Ordering::Relaxed);
        self.shared.obey(number, order, &self.notices);
        number
    }

    /// Gives the session an order of its memory watcher.
    pub(crate) fn change_memory(&self, change: Change) {
        let number = self.next_order.fetch_add(1, Ordering::Relaxed);
        let mut state = self.shared.lock();
        let refused = state.asked.take_change(number, change);
        state.refuse_all(refused);
        state.memory.gave(number);
        state.wake();
    }

    /// The flag that stops the session after the current step once it is set, for signal handlers.
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.shared.stop)
    }

    /// Stops the session as [`stop_flag`](Self::stop_flag) does. With a grace period, the session is to end within it from
    /// now on: it drops the step in progress if it can't finish the step and save in time. Returns whether this is the first
    /// request.
    pub fn stop_within(&self, grace: Option<Duration>) -> bool {
        let deadline = grace.map(|grace| self.shared.surroundings.now() + grace);
        {
            let mut state = self.shared.lock();
            state.deadline = state.deadline.or(deadline);
        }
        let is_first = !self.shared.stop.swap(true, Ordering::Relaxed);
        self.shared.lock().wake();
        is_first
    }

    /// The newest sample of cards and system; `None` before the first one, and if nothing is sampled.
    pub fn latest_sample(&self) -> Option<Arc<Sample>> {
        self.shared.lock().latest.clone()
    }

    /// Passes each sample to `tap` from now on; `None` ends that.
    pub fn tap_samples(&self, tap: Option<SampleTap>) {
        self.shared.lock().tap = tap;
    }

    /// Adds an event to the run's journal at its next step.
    pub fn tell(&self, event: Event) {
        self.shared.lock().tell(event);
    }
}

pub(crate) struct Shared {
    state: Mutex<State>,
    pub(crate) surroundings: Arc<dyn Surroundings>,
    pub(crate) stop: Arc<AtomicBool>,
}

#[derive(Default)]
pub(crate) struct State {
    /// The newest speed limit for heat, and when it was set.
    pub(crate) limit: Option<(plimsoll_heat::Order, Duration)>,
    /// Time of the longest micro-batch since the last sample.
    pub(crate) batch: Option<Duration>,
    /// Counters of the run, for health findings.
    pub(crate) facts: Facts,
    /// Energy that the cards used so far.
    pub(crate) energy: Option<EnergyUse>,
    pub(crate) events: Vec<Event>,
    pub(crate) tap: Option<SampleTap>,
    pub(crate) latest: Option<Arc<Sample>>,
    /// The step of the last micro-batch.
    pub(crate) step: u64,
    /// Orders that are not done yet.
    pub(crate) asked: Asked,
    pub(crate) memory: SharedMemory,
    /// The thread that trains, while it waits.
    waiting: Option<Thread>,
    /// When a stopped session must have ended.
    pub(crate) deadline: Option<Duration>,
    /// Whether the event that sensors no longer answer was given.
    is_stale: bool,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the state may have changed, at most for this time.
    pub(crate) fn wait<'a>(&'a self, mut state: MutexGuard<'a, State>, most: Duration) -> MutexGuard<'a, State> {
        state.waiting = Some(thread::current());
        drop(state);
        self.surroundings.wait(most);
        self.lock()
    }

    /// Takes an order, and wakes the run if it waits.
    pub(crate) fn obey(&self, number: u64, order: Order, notices: &Notices) {
        {
            let mut state = self.lock();
            if let Order::Budget { bytes } = order {
                state.memory.ordered = Some((number, Bytes(bytes)));
            }
            let refused = state.asked.take(number, order);
            state.refuse_all(refused);
            state.wake();
        }
        if order == Order::Stop && !self.stop.swap(true, Ordering::Relaxed) {
            notices(Notice::AskedToStop);
        }
    }
}

impl State {
    /// Keeps an event until the run's next step.
    pub(crate) fn tell(&mut self, event: Event) {
        if self.events.len() < EVENTS_MAX {
            self.events.push(event);
        }
    }

    /// Wakes the thread that trains if it waits: an order or the speed limit changed.
    pub(crate) fn wake(&mut self) {
        self.waiting.take().iter().for_each(Thread::unpark);
    }

    /// Records that an order was not followed after this step.
    pub(crate) fn refuse(&mut self, step: u64, order: u64, refusal: Refusal, reason: String) {
        self.memory.settle(order, Some(refusal));
        self.tell(Event::OrderRefused { step, order: Some(order), reason });
    }

    fn refuse_all(&mut self, orders: Vec<(u64, &'static str)>) {
        let step = self.step;
        orders.into_iter().for_each(|(order, reason)| self.refuse(step, order, Refusal::Other, reason.to_owned()));
    }

    pub(crate) fn is_too_hot(&self) -> bool {
        matches!(self.limit, Some((plimsoll_heat::Order::Stop { .. }, _)))
    }

    /// How much longer the run waits for heat before its next micro-batch; `None` if it may start. `took`: time of the last
    /// micro-batch; `made`: the time at its end; `stale`: age at which a limit is no longer valid.
    pub(crate) fn left(&mut self, took: Duration, made: Duration, now: Duration, stale: Duration) -> Option<Duration> {
        let (limit, given) = self.limit?;
        let is_stale = now.saturating_sub(given) > stale;
        if is_stale && !self.is_stale {
            let what = "sensors no longer answer: half of the time is waited".to_owned();
            self.tell(Event::Heat { card: "the GPU".to_owned(), what });
        }
        self.is_stale = is_stale;
        let share = match limit {
            // The step is finished, and the run ends.
            plimsoll_heat::Order::Stop { .. } => return None,
            limit if is_stale => limit.stale().share(),
            limit => limit.share(),
        };
        // With a share of 0 the wait ends only with another limit.
        let pause = if share > 0.0 { took.mul_f64((1.0 - share) / share) } else { Duration::MAX };
        Some(pause.saturating_sub(now.saturating_sub(made))).filter(|left| !left.is_zero())
    }
}
