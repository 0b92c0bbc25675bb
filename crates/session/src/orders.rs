//! Orders that a run has received, from its folder (`listener.rs`) or from a [`Control`](crate::Control). The pace follows them
//! between micro-batches (`pace.rs`).

use plimsoll_graph::MemoryId;
use plimsoll_orders::Order;
use plimsoll_plan::Found;
use plimsoll_telemetry::Event;
use plimsoll_units::Bytes;

/// Orders that a run has received and has not done yet.
#[derive(Default)]
pub(crate) struct Asked {
    /// The order to pause.
    pause: Option<u64>,
    /// Whether the run waits for it.
    waits: bool,
    /// The order that ended the pause.
    resumed: Option<u64>,
    /// The newest order that changes the run's memory.
    pub(crate) change: Option<(u64, Change)>,
    /// The plan by which the run continues.
    pub(crate) next: Option<Next>,
}

impl Asked {
    pub(crate) fn is_paused(&self) -> bool {
        self.pause.is_some()
    }

    /// Takes an order. Returns the orders that are refused by it or because of it, each with the reason. An order to stop is the
    /// caller's.
    pub(crate) fn take(&mut self, number: u64, order: Order) -> Vec<(u64, &'static str)> {
        match order {
            Order::Pause if self.is_paused() => return vec![(number, "it is already paused")],
            Order::Pause => self.pause = Some(number),
            Order::Resume if self.waits && self.is_paused() => (self.pause, self.resumed) = (None, Some(number)),
            Order::Resume => {
                return match self.pause.take() {
                    Some(pause) => {
                        vec![(pause, "it was taken back before it took effect"), (number, "it is not paused any more")]
                    }
                    None => vec![(number, "it is not paused")],
                };
            }
            Order::Budget { bytes } => return self.take_change(number, Change::Budget(Bytes(bytes))),
            Order::Stop => {}
        }
        vec![]
    }

    /// Takes an order that changes the run's memory. Returns the order that it replaces, with the reason.
    pub(crate) fn take_change(&mut self, number: u64, change: Change) -> Vec<(u64, &'static str)> {
        let before = self.change.replace((number, change));
        before.map(|(before, _)| (before, "another budget was asked for")).into_iter().collect()
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

/// A change of the run's memory.
pub(crate) enum Change {
    /// Another budget.
    Budget(Bytes),
    /// A smaller budget, since memory is short: the run saves and returns its memory before it plans again, which takes memory, too.
    Shrink(Bytes),
    /// The run saves, returns its memory and waits for another budget.
    Release {
        /// Why, for the journal.
        why: String,
    },
}

/// What the run continues with after its plan.
pub(crate) enum Target {
    /// A plan for this budget, as the order gave it.
    Plan(Bytes, Box<Found>),
    /// A plan for this budget, as the order gave it, which is made once the plan before has left the device.
    Smaller(Bytes),
    /// Nothing, until there is memory.
    Wait {
        /// Why.
        why: String,
    },
}

/// The end of a plan by an order.
pub(crate) struct Next {
    /// The order's number.
    pub(crate) order: u64,
    /// The last step that was made by the plan before.
    pub(crate) step: u64,
    pub(crate) target: Target,
    is_told: bool,
}

impl Next {
    pub(crate) fn new(order: u64, step: u64, target: Target) -> Self {
        Self { order, step, target, is_told: false }
    }

    /// The event of it, once; `None` if it is not known yet.
    pub(crate) fn tell(&mut self) -> Option<Event> {
        let Self { order, step, .. } = *self;
        if std::mem::replace(&mut self.is_told, true) {
            return None;
        }
        match &self.target {
            Target::Plan(_, found) => Some(replanned(order, step, found)),
            Target::Smaller(_) => None,
            Target::Wait { why } => Some(Event::MemoryPressure { step, what: why.clone(), waits: true }),
        }
    }
}

/// The event of another plan.
pub(crate) fn replanned(order: u64, step: u64, found: &Found) -> Event {
    let plan = &found.plan;
    let (planned_bytes, budget_bytes) = (plan.needed()[MemoryId::DEVICE].0, plan.budget().device().0);
    Event::Replanned { step, order, planned_bytes, budget_bytes }
}
