//! The memory of a run whose budget follows what other programs use: readings become orders to the run. It runs on the thread
//! that samples. Not here: the decisions (`plimsoll_plan::ElasticBudget`), and how orders are followed (`pace.rs`, `session.rs`).

use crate::control::Control;
use crate::orders::Change;
use crate::shared_memory::Residence;
use plimsoll_graph::MemoryId;
use plimsoll_orders::Order;
use plimsoll_plan::{BudgetRange, ElasticBudget, HeldMemory, MemoryAction, MemoryReading, OnPressure, Plan};
use plimsoll_telemetry::{Event, Sample};
use plimsoll_units::{Bytes, Seconds};
use std::sync::Arc;

/// The memory that a run could have, at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UsableMemory {
    /// The time of the reading since any start.
    pub time: Seconds,
    /// The budget that fits in what the run holds and what is free, less what is reserved for other programs.
    pub bytes: Bytes,
    /// Share of time in which tasks wait for memory, in percent; `None` if it is not known or does not concern the run.
    pub pressure_percent: Option<f64>,
}

/// Reads the memory that a run could have: from the time since the run began, a sample, and the bytes that its plan holds.
/// `None` if there is no reading.
pub type MemoryReader = Arc<dyn Fn(Seconds, &Sample, Bytes) -> Option<UsableMemory> + Send + Sync>;

/// How a run's budget follows the free memory.
#[derive(Clone)]
pub struct MemorySettings {
    /// The smallest and the largest budget, as orders state them.
    pub range: BudgetRange,
    /// What the run does when other programs need its memory.
    pub on_pressure: OnPressure,
    /// Whether the budget begins at that of the first plan and rises as steps succeed, without patience.
    pub rises: bool,
    /// The part of a budget that is not the plan's, such as the memory of a card's driver.
    pub outside: Bytes,
    /// Reads the memory.
    pub read: MemoryReader,
}

impl MemorySettings {
    /// The memory of a loaded plan.
    pub(crate) fn held_by(&self, plan: &Plan) -> HeldMemory {
        let outside = self.outside;
        HeldMemory { budget: plan.budget().device() + outside, held: plan.needed()[MemoryId::DEVICE] + outside }
    }
}

/// Watches the memory of a run.
pub(crate) struct MemoryWatch {
    settings: MemorySettings,
    budget: ElasticBudget,
    /// The plan of the last reading, and the steps that were made before it.
    since: (Residence, u64),
}

impl MemoryWatch {
    pub(crate) fn new(settings: MemorySettings) -> Self {
        let budget = ElasticBudget::new(settings.range, settings.on_pressure);
        Self { settings, budget, since: (Residence::default(), 0) }
    }

    /// Reads the memory and gives the run an order if it is due.
    pub(crate) fn observe(&mut self, now: Seconds, sample: &Sample, control: &Control) {
        let (residence, made) = {
            let state = control.shared.lock();
            (state.memory.residence, state.facts.steps)
        };
        if let (true, Residence::Loaded(plan)) = (self.settings.rises, residence) {
            self.settings.rises = false;
            self.budget.rise_from(plan.budget);
        }
        if self.since.0 != residence {
            self.since = (residence, made);
        }
        let plan = match residence {
            Residence::Loaded(plan) => Some(plan),
            Residence::Changing | Residence::Waiting => None,
        };
        let held = plan.map_or(Bytes::ZERO, |plan| plan.held.saturating_sub(self.settings.outside));
        let Some(UsableMemory { time, bytes: usable, pressure_percent }) = (self.settings.read)(now, sample, held)
        else {
            return;
        };
        let refused = {
            let memory = &mut control.shared.lock().memory;
            memory.most.take().into_iter().for_each(|most| self.budget.limit(most));
            // A reading from before a change says nothing about the memory after it.
            if memory.order.is_some() || memory.residence != residence || residence == Residence::Changing {
                return;
            }
            memory.refused.take()
        };
        let steps = made.saturating_sub(self.since.1);
        let reading = MemoryReading { time, usable, pressure_percent, plan, refused, steps };
        let action = self.budget.observe(&reading);
        let there = match plan {
            Some(plan) => format!("the run can have {usable} and holds {}", plan.held),
            None => format!("the run can have {usable}"),
        };
        follow(action, &there, control);
    }
}

/// Gives the run the order of an action. `there`: the memory, in words.
fn follow(action: MemoryAction, there: &str, control: &Control) {
    let words = match action {
        MemoryAction::Keep => return,
        MemoryAction::Wait => {
            let why = format!("{there}: it saved its state, returns its memory and waits");
            control.change_memory(Change::Release { why });
            return;
        }
        MemoryAction::Shrink(bytes) => format!("shrinking to a budget of {bytes}"),
        MemoryAction::Grow(bytes) => format!("growing to a budget of {bytes}"),
        MemoryAction::GoOn(bytes) => format!("continuing with a budget of {bytes}"),
        MemoryAction::Checkpoint => "saving a checkpoint".to_owned(),
        MemoryAction::Stop => "saving and ending".to_owned(),
    };
    {
        let mut state = control.shared.lock();
        let event = Event::MemoryPressure { step: state.step, what: format!("{there}: {words}"), waits: false };
        state.tell(event);
        state.memory.wants_checkpoint |= action == MemoryAction::Checkpoint;
    }
    match action {
        MemoryAction::Shrink(bytes) => control.change_memory(Change::Shrink(bytes)),
        MemoryAction::Grow(bytes) | MemoryAction::GoOn(bytes) => control.change_memory(Change::Budget(bytes)),
        MemoryAction::Stop => drop(control.order(Order::Stop)),
        MemoryAction::Keep | MemoryAction::Wait | MemoryAction::Checkpoint => {}
    }
}
