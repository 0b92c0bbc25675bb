//! A run uses no more heap after many steps than after few: the per-step numbers of its report are in the journal.

mod support;

use peak_alloc::PeakAlloc;
use plimsoll_telemetry::Event;
use plimsoll_train::{Ending, Start};
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicBool;
use support::{Setup, all_losses};

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Less than one byte per step between the two measurements.
const SLACK: usize = 1024;

#[test]
fn heap_use_does_not_grow_from_step_200_to_2_000() {
    const STEPS: u64 = 2_000;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = folder.path().join("run");
    let setup = Setup {
        steps: STEPS,
        checkpoint_every: Some(100),
        eval_every: Some(50),
        keep_checkpoints: 2,
        ..Setup::default()
    };
    // The data loader's thread and the journal hold a varying number of bytes.
    let least_within = |least: &mut usize, steps: RangeInclusive<u64>, event: &Event| {
        if matches!(event, Event::Step { step, .. } if steps.contains(step)) {
            *least = HEAP.current_usage().min(*least);
        }
    };
    for start in [Start::Fresh, Start::Resume(run.join(format!("checkpoints/step-{STEPS:06}")))] {
        let first = if start == Start::Fresh { 0 } else { STEPS };
        let setup = Setup { steps: first + STEPS, ..setup.clone() };
        let (mut early, mut late) = (usize::MAX, usize::MAX);
        let view = |event: &Event, _: &AtomicBool| {
            least_within(&mut early, first + 150..=first + 200, event);
            least_within(&mut late, first + STEPS - 50..=first + STEPS, event);
        };
        let (ending, report, _) = setup.run(&run, &start, view);
        assert_eq!(ending, Ending::Finished);
        assert!(late <= early + SLACK, "{early} bytes after 200 steps, {late} after {STEPS}");
        let losses = all_losses(&report, first + STEPS);
        assert!(losses.last() < losses.first() && report.eval.last().is_some_and(|e| e.step == first + STEPS));
        let steps = report.memory.iter().map(|at| at.step).collect::<Vec<_>>();
        assert_eq!(steps, [1, 10, 100, 1_000, first + STEPS]);
        let is_flat = report.memory.iter().all(|at| at.memory_bytes == report.memory[0].memory_bytes);
        assert!(is_flat, "{:?}", report.memory);
        assert!(report.measured.step_ms_p50.is_some() && report.measured.tokens_per_s.is_some());
    }
}
