//! A run that diverges: under every lever, the weights are those before the diverging step.

use crate::support::{GLOBAL_BATCH, Setup};
use plimsoll_graph::optimizers::{AdamW, Lion, Rule};
use plimsoll_graph::{MemoryId, Optimizer, TrainShape};
use plimsoll_plan::{Average, Levers, Precision};
use plimsoll_telemetry::{Event, Sink};
use plimsoll_train::{Ending, Engine, Length, RunFolder, Start, Trainer};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Recorded events of a run.
#[derive(Default)]
struct Seen {
    undoing: Option<(u64, u64)>,
    /// Step, whether its loss was finite, whether the weights are those before the step.
    diverged: Option<(u64, bool, bool)>,
}

impl Sink for Seen {
    fn take(&mut self, event: &Event) {
        match event {
            Event::Undoing { from, to } => self.undoing = Some((*from, *to)),
            // At such rates, weights may become infinite too, which is found when they are saved.
            Event::Diverged { step, loss, weights_whole, tensor: None, .. } => {
                self.diverged = Some((*step, loss.is_some(), *weights_whole));
            }
            _ => {}
        }
    }
}

/// The bits of weights, masters, averages and optimizer state after a run of at most `steps` steps, and its events.
fn run(setup: &Setup, folder: &Path, start: &Start, rate: f64, steps: u64) -> (Vec<Vec<u8>>, Ending, Seen) {
    let (mut engine, mut seen, stop) = (setup.engine(), Seen::default(), AtomicBool::new(false));
    let dataset = Arc::new(setup.dataset());
    let mut config = setup.config();
    // The same rates for every length of the run.
    (config.length, config.schedule.final_part) = (Length::MaxSteps(steps), 1.0);
    config.schedule.learning_rate = rate;
    let trainer = Trainer {
        engine: &mut engine,
        dataset: &dataset,
        folder: &RunFolder::open(folder, *start != Start::Fresh).expect("a folder"),
        config: &config,
        sinks: vec![&mut seen],
        stop: &stop,
        pace: &plimsoll_train::UnlimitedPace,
    };
    let ending = trainer.run(start).expect("a run without an error").ending;
    (state(&engine), ending, seen)
}

fn state(engine: &Engine) -> Vec<Vec<u8>> {
    let kept = engine.parameters().iter().flat_map(|p| {
        let training = p.training.as_ref().expect("a run that trains");
        let copies = [Some(p.tensor), training.master, training.remainder, training.average];
        copies.into_iter().flatten().chain(training.state.clone()).collect::<Vec<_>>()
    });
    kept.map(|id| engine.view(id).expect("a loaded plan").into_owned()).collect()
}

fn updating_early(rule: Rule, levers: Levers, checkpoint_every: Option<u64>) -> Setup {
    let plain = Setup::default();
    Setup {
        shape: TrainShape { micro_batch: GLOBAL_BATCH, accumulates: false, ..plain.shape.clone() },
        optimizer: Optimizer { rule, grad_clip: None, ..Optimizer::default() },
        levers: Levers { update_in_backward: true, ..levers },
        eval_every: None,
        checkpoint_every,
        ..plain
    }
}

/// With rates that are far too high, weights grow until a gradient overflows while the loss is still finite: some
/// parameters were updated by then.
#[test]
fn a_diverged_step_is_undone_with_early_updates() {
    let plain = Levers::default();
    let average = Some(Average { decay: 0.9, memory: MemoryId::HOST });
    let adamw: Rule = AdamW::default().into();
    for (what, setup) in [
        ("plain", updating_early(adamw, plain, None)),
        ("checkpoints", updating_early(adamw, plain, Some(2))),
        ("lion", updating_early(Lion::default().into(), plain, Some(3))),
        ("offload", updating_early(adamw, Levers { optimizer_offload: 0.5, average, ..plain }, Some(2))),
        ("bf16", updating_early(adamw, Levers { precision: Precision::Bf16, ..plain }, None)),
        ("bf16-pure", updating_early(adamw, Levers { precision: Precision::Bf16Pure, ..plain }, Some(1))),
    ] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut undone = 0;
        for power in 1..10 {
            let rate = 10f64.powi(power);
            let at = |name: &str| folder.path().join(format!("{name}-{power}"));
            let (left, ending, seen) = run(&setup, &at("diverged"), &Start::Fresh, rate, 30);
            let Some((step, loss_was_finite, weights_whole)) = seen.diverged else { continue };
            assert_eq!((ending, weights_whole), (Ending::Diverged, true), "{what}, {rate}");
            assert!(seen.undoing.is_some() || !loss_was_finite, "{what}, {rate}");
            let (expected, ..) = run(&setup, &at("before"), &Start::Fresh, rate, step - 1);
            assert!(left == expected, "{what}, {rate}: step {step} was not fully undone");
            undone += u32::from(seen.undoing.is_some_and(|(_, to)| to > 1));
        }
        assert!(undone > 0, "{what}: no rate makes a gradient overflow before the loss");
    }
}

/// A run returns to its own start: another run's weights, or a checkpoint.
#[test]
fn a_step_is_undone_from_weights_and_from_a_checkpoint() {
    let setup = updating_early(AdamW::default().into(), Levers::default(), None);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let first = folder.path().join("first");
    run(&setup, &first, &Start::Fresh, 1e-3, 3);
    let checkpoint = first.join("checkpoints/step-000003");
    for start in [Start::Weights(checkpoint.clone()), Start::Resume(checkpoint)] {
        let resumes = matches!(start, Start::Resume(_));
        let mut undone = 0;
        for power in 1..10 {
            let rate = 10f64.powi(power);
            let at = |name: &str| if resumes { first.clone() } else { folder.path().join(format!("{name}-{power}")) };
            let open = |path: &Path| std::fs::create_dir_all(path).expect("a folder");
            open(&at("diverged"));
            let (left, _, seen) = run(&setup, &at("diverged"), &start, rate, 30);
            let Some((step, true, weights_whole)) = seen.diverged else { continue };
            assert!(weights_whole && seen.undoing == Some((if resumes { 3 } else { 0 }, step - 1)), "{rate}");
            open(&at("before"));
            let (expected, ..) = run(&setup, &at("before"), &start, rate, step - 1);
            assert!(left == expected, "{start:?}, {rate}: step {step} was not fully undone");
            undone += 1;
        }
        assert!(undone > 0, "{start:?}: no rate makes a gradient overflow before the loss");
    }
}
