//! Power cuts of a run whose plan changes: no state that a cut can leave loses a checkpoint that was reported, and the run
//! resumes by any plan to the same losses.

use crate::power::{Cuts, Folders, SETTINGS};
use crate::{ROOMY, STEPS, least, loss_bits, open, open_reloading, run, session, session_on};
use plimsoll_exec::{Device, DeviceError};
use plimsoll_fake_disk::{Model, Recorded, Recorder};
use plimsoll_files::Disk;
use plimsoll_orders::Order;
use plimsoll_session::{Backend, Control, Observer, Setup, Unobserved};
use plimsoll_telemetry::{Event, Sink};
use plimsoll_train::checkpoint::newest_whole;
use plimsoll_train::{Ending, Start};
use plimsoll_units::Bytes;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

/// Gives the run other budgets, and records what it reports as saved.
struct Replanning {
    control: Control,
    recorder: Arc<Recorder>,
    tight: Bytes,
}

impl Sink for Replanning {
    fn take(&mut self, event: &Event) {
        match event {
            Event::CheckpointSaved { step, .. } => self.recorder.push(Recorded::Promised(*step)),
            Event::Step { step: 2, .. } => drop(self.control.order(Order::Budget { bytes: self.tight.0 })),
            Event::Step { step: 4, .. } => drop(self.control.order(Order::Budget { bytes: ROOMY.0 })),
            _ => {}
        }
    }
}

impl<B: Backend> Observer<B> for Replanning {
    fn plan_begins(&mut self, setup: &Setup<'_, B>) -> Result<Vec<(PathBuf, Vec<u8>)>, B::Error> {
        Ok(vec![(setup.folder.config(), SETTINGS.to_vec())])
    }
}

/// All states after a cut of a run that saves every `every` steps and changes its plan twice.
fn cuts(every: Option<u64>, few: usize, device: fn() -> Result<Box<dyn Device>, DeviceError>) -> Cuts {
    let (folders, recorder) = (Folders::new(), Arc::new(Recorder::default()));
    let disk = Disk::watched(recorder.clone());
    let run = folders.disk.join("run");
    let mut session = session_on(disk, &run, Start::Fresh, ROOMY, None, every, device);
    let mut replanning = Replanning { control: session.control(), recorder: recorder.clone(), tight: least() };
    let outcome = session.run(&mut replanning).expect("no error of the device");
    assert_eq!(outcome.ending, Ending::Finished);
    let recorded = recorder.take();
    let plans = |recorded: &&Recorded| matches!(recorded, Recorded::Rename(_, to) if to.ends_with("plan.json"));
    assert_eq!(recorded.iter().filter(plans).count(), 3, "the plan changes twice");
    let mut cuts = Cuts::default();
    cuts.take(&folders, &mut Model::new(&folders.disk), &recorded, None, few);
    cuts
}

/// Resumes every `stride`-th state by a small or a large plan, to the losses of a run that was never cut. Returns their number.
fn resumed(cuts: &Cuts, stride: usize) -> usize {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let whole = loss_bits(&run(&folder.path().join("whole"), Start::Fresh, |_, _| {}).0);
    let (tight, mut count) = (least(), 0);
    for (number, (_, tree)) in cuts.trees.iter().enumerate().step_by(stride) {
        let disk = folder.path().join(number.to_string());
        for (path, file) in tree {
            let path = disk.join(path);
            match file {
                Some(bytes) => fs::write(path, bytes).expect("written"),
                None => fs::create_dir_all(path).expect("a new folder"),
            }
        }
        let run = disk.join("run");
        let Some((checkpoint, _)) = newest_whole(&run.join("checkpoints")).expect("it was looked at").found else {
            continue;
        };
        let budget = if count % 2 == 0 { tight } else { ROOMY };
        let outcome = session(&run, Start::Resume(checkpoint), budget, None).run(&mut Unobserved);
        assert_eq!(loss_bits(&outcome.expect("no error of the device")), whole, "{:?}", tree.keys());
        fs::remove_dir_all(disk).expect("it is there");
        count += 1;
    }
    count
}

#[test]
fn invariant_7_no_power_cut_of_a_run_whose_plan_changes_loses_a_checkpoint() {
    assert_eq!(STEPS, 6);
    // Plans that take over the state on the device save nothing between them.
    for (every, device) in [(None, open_reloading as fn() -> _), (Some(3), open)] {
        let cuts = cuts(every, 3, device);
        let count = resumed(&cuts, cuts.trees.len() / 12);
        println!("evidence: {} different states while plans change, {count} of them resumed", cuts.looked_at.len());
        assert!(cuts.looked_at.len() > 100 && count > 5, "{} and {count}", cuts.looked_at.len());
    }
}

/// Produces the figure of `bench/results/reliability.md`.
#[test]
#[ignore = "evidence at scale, minutes: `python3 bench/reliability.py --only replan`"]
fn evidence_of_power_cuts_while_plans_change() {
    let (mut states, mut count) = (0, 0);
    for every in [None, Some(1), Some(2), Some(3)] {
        let cuts = cuts(every, 9, open_reloading);
        states += cuts.looked_at.len();
        count += resumed(&cuts, 10);
    }
    println!("evidence: {states} different states while plans change, {count} of them resumed by another plan");
}
