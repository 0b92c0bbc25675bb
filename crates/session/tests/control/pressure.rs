//! Sessions whose budget follows readings of memory: they shrink, grow, wait, save and stop by themselves, and their losses are
//! those of an undisturbed run.

use crate::{Asking, ROOMY, STEPS, least, loss_bits, run, session};
use plimsoll_heat::Settings as HeatSettings;
use plimsoll_orders::Order;
use plimsoll_plan::{BudgetRange, OnPressure};
use plimsoll_session::{Control, MemorySettings, UsableMemory, WatchSettings};
use plimsoll_telemetry::{Event, read_journal};
use plimsoll_train::{Ending, Outcome, Start};
use plimsoll_units::{Bytes, Seconds};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Time between two readings as the budget counts it.
const BETWEEN_S: f64 = 10.0;

/// Bytes of a page of memory.
const PAGE: u64 = 4096;

/// Readings after which growth is due, and every other action.
const ENOUGH: u64 = 8;

/// The memory that a test pretends to have.
#[derive(Default)]
struct Memory {
    /// The bytes that the run could have, and the number of readings so far.
    state: Mutex<(Bytes, u64)>,
    was_read: Condvar,
}

impl Memory {
    fn set(&self, bytes: Bytes) {
        self.state.lock().expect("no panic").0 = bytes;
    }

    /// Changes the memory, and returns when it was read often enough.
    fn set_and_wait(&self, bytes: Bytes) {
        let mut state = self.state.lock().expect("no panic");
        state.0 = bytes;
        let until = state.1 + ENOUGH;
        let waited = self.was_read.wait_timeout_while(state, Duration::from_secs(60), |state| state.1 < until);
        assert!(!waited.expect("no panic").1.timed_out(), "nothing is sampled");
    }

    fn read(&self) -> UsableMemory {
        let mut state = self.state.lock().expect("no panic");
        state.1 += 1;
        self.was_read.notify_all();
        UsableMemory { time: Seconds(BETWEEN_S * state.1 as f64), bytes: state.0, pressure_percent: None }
    }

    fn watched(self: &Arc<Self>, range: BudgetRange, on_pressure: OnPressure) -> WatchSettings {
        let memory = Arc::clone(self);
        WatchSettings {
            every: Duration::from_millis(10),
            heat: HeatSettings { max_c: 83.0, throttle_c: 78.0, resume_c: 70.0, memory_max_c: 100.0 },
            price: None,
            health_event: |episode| Event::Heat { card: "machine".to_owned(), what: format!("{episode:?}") },
            memory: Some(MemorySettings {
                range,
                on_pressure,
                rises: false,
                outside: Bytes::ZERO,
                read: Arc::new(move |_, _, _| Some(memory.read())),
            }),
        }
    }
}

/// Runs in a range of budgets, in memory that `asks` changes. Returns the events, too.
fn run_in(
    folder: &Path,
    range: BudgetRange,
    on_pressure: OnPressure,
    mut asks: impl FnMut(&Event, &Control, &Memory),
) -> (Outcome, Vec<Event>) {
    let memory = Arc::new(Memory::default());
    memory.set(ROOMY);
    let mut session = session(folder, Start::Fresh, ROOMY, Some(memory.watched(range, on_pressure)));
    let asks = |event: &Event, control: &Control| asks(event, control, &memory);
    let mut asking = Asking { control: session.control(), asks, events: vec![] };
    let outcome = session.run(&mut asking).expect("no error of the device");
    let by_last_plan = asking.events.iter().rev().take_while(|event| !matches!(event, Event::RunStarted { .. }));
    let ended_waiting =
        by_last_plan.into_iter().any(|event| matches!(event, Event::MemoryPressure { waits: true, .. }));
    assert_eq!(session.has_engine(), !ended_waiting);
    (outcome, asking.events)
}

/// Checks that each step held the bytes of its plan, to the page. Returns the plans' bytes.
fn plans(events: &[Event]) -> Vec<u64> {
    let mut plans = Vec::<u64>::new();
    for event in events {
        match event {
            Event::RunStarted { planned_bytes, .. } => plans.push(*planned_bytes),
            Event::Step { memory_bytes, step, .. } => {
                let planned = plans.last().map(|planned| planned.next_multiple_of(PAGE));
                assert_eq!(Some(*memory_bytes), planned, "step {step}");
            }
            _ => {}
        }
    }
    plans
}

/// The steps after which the run waited or changed its plan.
fn changes(events: &[Event]) -> Vec<(&'static str, u64)> {
    let change = |event: &Event| match event {
        Event::Replanned { step, .. } => Some(("replanned", *step)),
        Event::MemoryPressure { step, waits: true, .. } => Some(("waits", *step)),
        Event::OrderRefused { step, .. } => Some(("refused", *step)),
        _ => None,
    };
    events.iter().filter_map(change).collect()
}

fn undisturbed(folder: &Path) -> Vec<u64> {
    loss_bits(&run(&folder.join("whole"), Start::Fresh, |_, _| {}).0)
}

fn range() -> BudgetRange {
    BudgetRange { least: least(), most: ROOMY }
}

#[test]
fn a_budget_shrinks_and_grows_and_changes_no_loss() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let least = least();
    let (outcome, events) =
        run_in(&folder.path().join("moved"), range(), OnPressure::Shrink, |event, _, memory| match event {
            Event::Step { step: 2, .. } => memory.set_and_wait(least),
            Event::Step { step: 4, .. } => memory.set_and_wait(ROOMY),
            _ => {}
        });
    assert_eq!(outcome.ending, Ending::Finished);
    assert_eq!(changes(&events), [("replanned", 2), ("replanned", 4)], "{events:?}");
    let plans = plans(&events);
    assert_eq!((plans[1], plans.len()), (least.0, 3));
    assert_eq!(plans[0], plans[2]);
    let said = events.iter().filter(|event| matches!(event, Event::MemoryPressure { .. })).count();
    assert_eq!(said, 2, "{events:?}");
    assert_eq!(loss_bits(&outcome), undisturbed(folder.path()));
}

#[test]
fn a_run_waits_without_memory_and_continues_by_itself() {
    // In the second run not even the least is left, in the third the smallest plan is larger than the least.
    for (on_pressure, least_of_range, left, expected) in [
        (OnPressure::Wait, least(), least(), vec![("waits", 3), ("replanned", 3)]),
        (OnPressure::Shrink, least(), Bytes(1), vec![("waits", 3), ("replanned", 3)]),
        (OnPressure::Shrink, Bytes(1), Bytes(1), vec![("waits", 3), ("refused", 3), ("replanned", 3)]),
    ] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let range = BudgetRange { least: least_of_range, most: ROOMY };
        let (outcome, events) =
            run_in(&folder.path().join("waits"), range, on_pressure, |event, _, memory| match event {
                Event::Step { step: 3, .. } => memory.set_and_wait(left),
                Event::MemoryPressure { waits: true, .. } => memory.set(ROOMY),
                _ => {}
            });
        assert_eq!(outcome.ending, Ending::Finished);
        assert_eq!(changes(&events), expected, "{events:?}");
        let plans = plans(&events);
        assert_eq!((plans.len(), plans[0]), (2, plans[1]));
        assert_eq!(loss_bits(&outcome), undisturbed(folder.path()));
    }
}

/// Without the adoption, a run would save and load its state each time that more memory is free than it can use.
#[test]
fn a_growth_that_changes_only_the_budget_does_not_interrupt_the_run() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let twice = Bytes(2 * ROOMY.0);
    let range = BudgetRange { least: least(), most: twice };
    let (outcome, events) =
        run_in(&folder.path().join("grown"), range, OnPressure::Shrink, |event, _, memory| match event {
            Event::Step { step: 2 | 3, .. } => memory.set_and_wait(twice),
            Event::Step { step: 4, .. } => memory.set_and_wait(least()),
            _ => {}
        });
    assert_eq!(outcome.ending, Ending::Finished);
    assert_eq!(changes(&events), [("replanned", 4)], "{events:?}");
    let said = events.iter().filter(|event| matches!(event, Event::MemoryPressure { .. })).count();
    assert_eq!(said, 2, "one growth and one shortage: {events:?}");
    assert_eq!(loss_bits(&outcome), undisturbed(folder.path()));
}

#[test]
fn a_budget_does_not_grow_above_the_one_that_a_user_ordered() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (outcome, events) =
        run_in(&folder.path().join("ordered"), range(), OnPressure::Shrink, |event, control, memory| match event {
            Event::Step { step: 1, .. } => drop(control.order(Order::Budget { bytes: least().0 })),
            Event::Step { step: 2 | 4, .. } => memory.set_and_wait(ROOMY),
            // An order that is refused changes nothing.
            Event::Step { step: 3, .. } => drop(control.order(Order::Budget { bytes: 1 })),
            _ => {}
        });
    assert_eq!(outcome.ending, Ending::Finished);
    assert_eq!(changes(&events), [("replanned", 1), ("refused", 3)], "{events:?}");
    assert_eq!(plans(&events)[1], least().0);
}

#[test]
fn a_run_that_is_stopped_by_its_policy_or_while_it_waits_can_be_resumed() {
    for on_pressure in [OnPressure::Stop, OnPressure::Wait] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("stopped");
        let (outcome, events) = run_in(&path, range(), on_pressure, |event, control, memory| match event {
            Event::Step { step: 2, .. } => memory.set_and_wait(Bytes(1)),
            Event::MemoryPressure { waits: true, .. } => drop(control.order(Order::Stop)),
            _ => {}
        });
        assert_eq!((outcome.ending, outcome.report.status.as_str()), (Ending::Interrupted, "interrupted"));
        assert_eq!(events.last(), Some(&Event::Interrupted { step: 2 }), "{events:?}");
        let journal = read_journal(&path.join("journal.jsonl")).expect("a journal");
        assert_eq!(journal.last().map(|record| &record.event), Some(&Event::Interrupted { step: 2 }));
        let report = std::fs::read_to_string(path.join("report.json")).expect("a report");
        assert!(report.contains(r#""status": "interrupted""#), "{report}");
        let checkpoint = outcome.saved.expect("a checkpoint").1;
        let (resumed, _) = run(&path, Start::Resume(checkpoint), |_, _| {});
        assert_eq!(loss_bits(&resumed), undisturbed(folder.path()));
    }
}

#[test]
fn a_shortage_saves_one_checkpoint_and_the_run_continues() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (outcome, events) =
        run_in(&folder.path().join("saved"), range(), OnPressure::Checkpoint, |event, _, memory| {
            if let Event::Step { step: 2 | 3, .. } = event {
                memory.set_and_wait(Bytes(1));
            }
        });
    let saved = events.iter().filter_map(|event| match event {
        Event::CheckpointSaved { step, .. } => Some(*step),
        _ => None,
    });
    assert_eq!(saved.collect::<Vec<_>>(), [2, STEPS]);
    assert_eq!((outcome.ending, loss_bits(&outcome)), (Ending::Finished, undisturbed(folder.path())));
}
