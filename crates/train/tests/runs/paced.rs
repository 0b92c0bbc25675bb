//! Runs that are paused by their pace, or that continue with another plan.

use crate::resume::{assert_same_run, run_with_stops};
use crate::support::Setup;
use plimsoll_files::{Disk, Operation, Watch};
use plimsoll_telemetry::{Event, Sink};
use plimsoll_train::{Ending, MicroBatch, Outcome, Pace, RunFolder, Start, Trainer};
use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Requests another plan after each step; paused for long in the second one.
#[derive(Default)]
struct Asking {
    kept: RefCell<Vec<u64>>,
}

impl Pace for Asking {
    fn watches(&self) -> bool {
        true
    }

    fn micro_batch(&self, made: MicroBatch, _: &AtomicBool, tell: &mut dyn FnMut(Event)) {
        if made.step == 2 {
            tell(Event::Paused { step: 2, order: 7 });
            tell(Event::Unpaused { step: 2, order: Some(8), seconds: 1e6 });
        }
    }

    fn take_events(&self) -> Vec<Event> {
        vec![]
    }

    fn ends(&self, step: u64) -> Option<Ending> {
        (step > 1).then_some(Ending::Replanned)
    }

    fn keeps_plan(&self, step: u64, reason: &str) {
        assert!(reason.contains("step-"), "{reason}");
        self.kept.borrow_mut().push(step);
    }
}

/// A disk that refuses checkpoints.
#[derive(Debug)]
struct Full;

impl Watch for Full {
    fn before(&self, operation: Operation<'_>) -> io::Result<()> {
        let is_checkpoint = |path: &Path| path.to_string_lossy().contains("step-");
        match operation {
            Operation::CreateFolder(path) | Operation::CreateFile(path) if is_checkpoint(path) => {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }
}

#[derive(Default)]
struct Recorded(Vec<Event>);

impl Sink for Recorded {
    fn take(&mut self, event: &Event) {
        self.0.push(event.clone());
    }
}

fn run(disk: Disk, pace: &dyn Pace) -> (Outcome, Vec<Event>) {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let setup = Setup { steps: 4, eval_every: None, checkpoint_every: None, ..Setup::default() };
    let (mut events, stop) = (Recorded::default(), AtomicBool::new(false));
    let trainer = Trainer {
        engine: &mut setup.engine(),
        dataset: &Arc::new(setup.dataset()),
        folder: &RunFolder::open_on(disk, &parent.path().join("run"), false).expect("a folder"),
        config: &setup.config(),
        sinks: vec![&mut events],
        stop: &stop,
        pace,
    };
    let outcome = trainer.run(&Start::Fresh).expect("no error of the device");
    (outcome, events.0)
}

#[test]
fn a_plan_changes_after_a_checkpoint_and_stays_without_one() {
    let pace = Asking::default();
    let (outcome, _) = run(Disk::default(), &pace);
    assert_eq!((outcome.ending, outcome.report.status.as_str()), (Ending::Replanned, "replanned"));
    assert_eq!((outcome.saved.map(|(step, _)| step), outcome.report.losses.len()), (Some(2), 2));
    assert!(pace.kept.borrow().is_empty());
    let (outcome, events) = run(Disk::watched(Arc::new(Full)), &pace);
    assert_eq!((outcome.ending, outcome.report.losses.len()), (Ending::Finished, 4), "it continues to its end");
    assert_eq!(*pace.kept.borrow(), [2, 3]);
    assert!(events.iter().any(|event| matches!(event, Event::CheckpointFailed { step: 2, .. })));
}

/// Counts the calls that may make a run wait.
#[derive(Default)]
struct Counting {
    steps: RefCell<Vec<u64>>,
    batches: RefCell<Vec<u64>>,
}

impl Pace for Counting {
    fn watches(&self) -> bool {
        true
    }

    fn before_step(&self, step: u64, _: &AtomicBool, _: &mut dyn FnMut(Event)) {
        self.steps.borrow_mut().push(step);
    }

    fn micro_batch(&self, made: MicroBatch, _: &AtomicBool, _: &mut dyn FnMut(Event)) {
        self.batches.borrow_mut().push(made.step);
    }

    fn take_events(&self) -> Vec<Event> {
        vec![]
    }

    fn ends(&self, _: u64) -> Option<Ending> {
        None
    }

    fn keeps_plan(&self, _: u64, _: &str) {}
}

/// Otherwise a card that became too hot during an update or an evaluation would compute further.
#[test]
fn a_run_may_wait_before_each_step_and_after_each_evaluated_batch() {
    let pace = Counting::default();
    let (outcome, _) = run(Disk::default(), &pace);
    assert_eq!(outcome.ending, Ending::Finished);
    assert_eq!(*pace.steps.borrow(), [1, 2, 3, 4]);
    // Two micro-batches in each step; the five samples that are evaluated after the last one are two more.
    assert_eq!(*pace.batches.borrow(), [1, 1, 2, 2, 3, 3, 4, 4, 4, 4]);
}

#[test]
fn a_pause_is_reported_in_its_step_and_counts_in_no_duration() {
    let (outcome, events) = run(Disk::default(), &Asking::default());
    let of = |event: &Event| match event {
        Event::Paused { .. } => Some("paused"),
        Event::Unpaused { .. } => Some("unpaused"),
        Event::Step { step: 2, step_ms, .. } => {
            assert_eq!(*step_ms, 0.0);
            Some("step 2")
        }
        _ => None,
    };
    assert_eq!(events.iter().filter_map(of).take(3).collect::<Vec<_>>()[0..2], ["paused", "unpaused"]);
    assert_eq!(events.iter().filter_map(of).next_back(), Some("step 2"));
    assert_eq!(outcome.report.seconds, 0.0);
}

/// Asks the run to stop during a step, and drops that step or not.
struct Stopping {
    during: u64,
    drops: bool,
}

impl Pace for Stopping {
    fn watches(&self) -> bool {
        true
    }

    fn micro_batch(&self, made: MicroBatch, stop: &AtomicBool, _: &mut dyn FnMut(Event)) {
        stop.fetch_or(made.step == self.during, Ordering::Relaxed);
    }

    fn drops_step(&self, needed: Duration) -> bool {
        assert!(needed > Duration::ZERO);
        self.drops
    }

    fn take_events(&self) -> Vec<Event> {
        vec![]
    }

    fn ends(&self, _: u64) -> Option<Ending> {
        None
    }

    fn keeps_plan(&self, _: u64, _: &str) {}
}

#[test]
fn invariant_7_a_run_that_drops_its_step_saves_the_state_before_it() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let setup = Setup { steps: 5, eval_every: None, ..Setup::default() };
    let whole = run_with_stops(&setup, &parent.path().join("whole"), &[]);
    for (during, drops) in [(1, true), (3, true), (3, false), (5, true)] {
        let run = parent.path().join(format!("{during}-{drops}"));
        let folder = RunFolder::open(&run, false).expect("a folder");
        let trainer = Trainer {
            engine: &mut setup.engine(),
            dataset: &Arc::new(setup.dataset()),
            folder: &folder,
            config: &setup.config(),
            sinks: vec![],
            stop: &AtomicBool::new(false),
            pace: &Stopping { during, drops },
        };
        let outcome = trainer.run(&Start::Fresh).expect("no error of the device");
        drop(folder);
        assert_eq!(outcome.ending, Ending::Interrupted);
        let (step, checkpoint) = outcome.saved.expect("a checkpoint");
        assert_eq!(step, if drops { during - 1 } else { during });
        let resumed = setup.run(&run, &Start::Resume(checkpoint), |_: &_, _: &_| {});
        assert_same_run(&format!("dropped {during}: {drops}"), &setup, &resumed, &whole);
    }
}
