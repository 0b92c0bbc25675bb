//! Orders that a run receives while it trains. A thread reads the run's inbox each second; the pace follows the orders between
//! micro-batches (`pace.rs`). Not here: how orders are written and checked (`plimsoll-orders`).

use crate::control::{Shared, State};
use crate::notice::Notices;
use plimsoll_graph::MemoryId;
use plimsoll_orders::{Inbox, NewOrders, Order};
use plimsoll_plan::Found;
use plimsoll_telemetry::Event;
use plimsoll_units::Bytes;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time between two looks at the inbox.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Orders that a run has received and has not done yet.
#[derive(Default)]
pub(crate) struct Asked {
    /// The order to pause.
    pause: Option<u64>,
    /// Whether the run waits for it.
    waits: bool,
    /// The order that ended the pause.
    resumed: Option<u64>,
    /// The newest order of a budget, and the budget.
    pub(crate) budget: Option<(u64, Bytes)>,
    /// The plan by which the run continues.
    pub(crate) next: Option<Next>,
}

impl Asked {
    pub(crate) fn is_paused(&self) -> bool {
        self.pause.is_some()
    }

    /// The order for which the run waits from now on; `None` if it was taken back.
    pub(crate) fn begin_pause(&mut self) -> Option<u64> {
        self.waits = self.pause.is_some();
        self.pause
    }

    /// The order that ended the pause; `None` if the run ends.
    pub(crate) fn end_pause(&mut self) -> Option<u64> {
        (self.waits, self.pause) = (false, None);
        self.resumed.take()
    }
}

/// Reads a run's inbox until it is dropped.
pub(crate) struct Listener {
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Listener {
    /// Reads the inbox in a run's folder, on a thread of its own: a card's driver may block the thread that samples, and
    /// samples may be far apart. Errors: the folder takes no orders, or the system starts no thread.
    pub(crate) fn start(run: &Path, shared: &Arc<Shared>, notices: &Notices) -> io::Result<Self> {
        let mut inbox = Inbox::open(run)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, shared, notices) = (is_over.clone(), shared.clone(), notices.clone());
        let listen = move || {
            while !over.load(Ordering::Relaxed) {
                let NewOrders { orders, lost } = inbox.poll();
                for (number, order) in orders {
                    shared.obey(number, order, &notices);
                }
                if let Some(why) = lost {
                    let reason = format!("no more orders are taken: {why}");
                    let mut state = shared.lock();
                    let step = state.step;
                    state.tell(Event::OrderRefused { step, order: None, reason });
                }
                std::thread::park_timeout(LOOK_EVERY);
            }
        };
        let thread = std::thread::Builder::new().name("orders".to_owned()).spawn(listen)?;
        Ok(Self { is_over, thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // If the thread panicked, the run is over nevertheless.
            let _ = thread.join();
        }
    }
}

/// Records an order in the state of the run. Returns whether it is the first that asks the run to stop.
pub(crate) fn obey(state: &mut State, number: u64, order: Order, stop: &AtomicBool) -> bool {
    match order {
        Order::Pause if state.asked.is_paused() => state.refuse(number, "it is already paused"),
        Order::Pause => state.asked.pause = Some(number),
        Order::Resume if state.asked.waits && state.asked.is_paused() => {
            (state.asked.pause, state.asked.resumed) = (None, Some(number));
        }
        Order::Resume => {
            match state.asked.pause.take() {
                Some(pause) => {
                    state.refuse(pause, "it was taken back before it took effect");
                    state.refuse(number, "it is not paused any more");
                }
                None => state.refuse(number, "it is not paused"),
            };
        }
        Order::Stop => return !stop.swap(true, Ordering::Relaxed),
        Order::Budget { bytes } => {
            if let Some((before, _)) = state.asked.budget.replace((number, Bytes(bytes))) {
                state.refuse(before, "another budget was asked for");
            }
        }
    }
    false
}

/// A plan for another budget.
pub(crate) struct Next {
    /// The order's number.
    pub(crate) order: u64,
    /// The last step that was made by the plan before.
    pub(crate) step: u64,
    /// The budget, as the order gave it.
    pub(crate) budget: Bytes,
    pub(crate) found: Found,
    is_told: bool,
}

impl Next {
    pub(crate) fn new(order: u64, step: u64, budget: Bytes, found: Found) -> Self {
        Self { order, step, budget, found, is_told: false }
    }

    /// The event of it, once.
    pub(crate) fn tell(&mut self) -> Option<Event> {
        let Self { order, step, .. } = *self;
        let plan = &self.found.plan;
        let (planned_bytes, budget_bytes) = (plan.needed()[MemoryId::DEVICE].0, plan.budget().device().0);
        let is_told = std::mem::replace(&mut self.is_told, true);
        (!is_told).then_some(Event::Replanned { step, order, planned_bytes, budget_bytes })
    }
}
