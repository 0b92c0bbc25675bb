//! Runs that are paused by their pace, or that continue with another plan.

use crate::support::Setup;
use plimsoll_files::{Disk, Operation, Watch};
use plimsoll_telemetry::{Event, Sink};
use plimsoll_train::{Ending, MicroBatch, Outcome, Pace, RunFolder, Start, Trainer};
use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

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

fn run(disk: Disk, pace: &Asking) -> (Outcome, Vec<Event>) {
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
