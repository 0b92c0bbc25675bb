//! Optimizers other than the default, and runs with frozen parameters: no lever and no stop changes a bit, and frozen
//! parameters stay unchanged.

use crate::support::{GLOBAL_BATCH, Setup, all_losses, bits, families};
use plimsoll_graph::ops::StateFormat;
use plimsoll_graph::optimizers::{AdamW, Lion, Rule};
use plimsoll_graph::{MemoryId, Op, Optimizer, ProgramKind, Role, TrainShape};
use plimsoll_plan::{Average, Level, Levers, Precision, Recompute};
use plimsoll_telemetry::Event;
use plimsoll_train::checkpoint::{MODEL_FILE, OPTIMIZER_FILE, load_weights};
use plimsoll_train::{Ending, Start};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const LION: Rule = Rule::Lion(Lion { beta1: 0.9, beta2: 0.99 });

/// A run in one micro-batch, without clipping, so that every lever can be used.
fn open_to_all(setup: &Setup, rule: Rule) -> Setup {
    let optimizer = Optimizer { rule, grad_clip: None, ..setup.optimizer };
    let shape = TrainShape { micro_batch: GLOBAL_BATCH, accumulates: false, ..setup.shape.clone() };
    Setup { shape, optimizer, levers: Levers::default(), ..setup.clone() }
}

/// The same run, with parameters frozen whose names contain one of these.
fn frozen(setup: &Setup, parts: &[&str]) -> Setup {
    let names = setup.model.parameter_names();
    let frozen = names.iter().filter(|name| parts.iter().any(|part| name.contains(part))).cloned().collect();
    let shape = TrainShape { frozen, ..setup.shape.clone() };
    assert!(!shape.frozen.is_empty() && shape.frozen.len() < names.len(), "{parts:?}");
    Setup { shape, ..setup.clone() }
}

/// Levers that change no bit, in addition to those of `plain`.
fn ways(plain: Levers) -> Vec<Levers> {
    let average = Some(Average { decay: 0.9, memory: MemoryId::HOST });
    vec![
        Levers { recompute: Recompute::all(Level::Block), ..plain },
        Levers { optimizer_offload: 0.5, ..plain },
        Levers { update_in_backward: true, ..plain },
        Levers { update_in_backward: true, optimizer_offload: 1.0, recompute: Recompute::all(Level::Cheap), ..plain },
        Levers { average, optimizer_offload: 0.3, ..plain },
    ]
}

fn assert_levers_change_no_bit(what: &str, setup: &Setup) {
    let expected = bits(&setup.losses());
    for levers in ways(setup.levers) {
        let pulled = Setup { levers, ..setup.clone() };
        assert_eq!(bits(&pulled.losses()), expected, "{what}: {levers:?}");
    }
}

#[test]
fn levers_change_no_bit_of_a_run_with_lion() {
    let formats = [StateFormat::F32, StateFormat::Bf16, StateFormat::Blockwise8];
    for precision in [Precision::Fp32, Precision::Bf16, Precision::Bf16Pure] {
        for optimizer_state in formats {
            let setup = open_to_all(&Setup::default(), LION);
            let setup = Setup { levers: Levers { precision, optimizer_state, ..setup.levers }, ..setup };
            assert_levers_change_no_bit(&format!("{precision:?} {optimizer_state:?}"), &setup);
        }
    }
}

#[test]
fn lion_learns_and_keeps_half_of_what_adamw_keeps() {
    let with = |rule, optimizer_state| {
        let setup = open_to_all(&Setup::default(), rule);
        Setup { levers: Levers { optimizer_state, ..setup.levers }, steps: 60, ..setup }
    };
    let optimizer_bytes = |setup: &Setup| setup.plan().1.breakdown.optimizer_bytes;
    let lion = with(LION, StateFormat::F32);
    assert_eq!(2 * optimizer_bytes(&lion), optimizer_bytes(&with(AdamW::default().into(), StateFormat::F32)));
    for state in [StateFormat::F32, StateFormat::Bf16, StateFormat::Blockwise8] {
        let losses = with(LION, state).losses();
        assert!(losses[59] < 0.9 * losses[0], "{state:?}: {} {}", losses[0], losses[59]);
    }
}

/// Runs to a step, is stopped, and resumes.
fn with_a_stop(setup: &Setup, folder: &Path, last: u64) -> crate::support::Outcome {
    let stop = move |event: &Event, stop: &AtomicBool| {
        if matches!(event, Event::Step { step, .. } if *step == last) {
            stop.store(true, Ordering::Relaxed);
        }
    };
    let (ending, _, checkpoint) = setup.run(folder, &Start::Fresh, stop);
    assert_eq!(ending, Ending::Interrupted);
    setup.run(folder, &Start::Resume(checkpoint.expect("a checkpoint")), |_: &_, _: &_| {})
}

#[test]
fn a_resumed_run_is_the_run_with_lion_and_with_frozen_parameters() {
    let plain = Setup::default();
    let average = Some(Average { decay: 0.9, memory: MemoryId::DEVICE });
    for (what, setup) in [
        ("lion", Setup { optimizer: Optimizer { rule: LION, ..plain.optimizer }, ..plain.clone() }),
        ("frozen", frozen(&plain, &[".h.0.", "wte"])),
        ("averaged", Setup { levers: Levers { average, ..plain.levers }, ..frozen(&plain, &[".bias"]) }),
    ] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (_, expected, whole) = setup.run(&folder.path().join("whole"), &Start::Fresh, |_: &_, _: &_| {});
        let (_, found, stopped) = with_a_stop(&setup, &folder.path().join("stopped"), 5);
        assert_eq!(bits(&all_losses(&found, 12)), bits(&all_losses(&expected, 12)), "{what}");
        let read = |checkpoint: &Option<std::path::PathBuf>, file| {
            fs::read(checkpoint.as_ref().expect("a checkpoint").join(file)).expect("a whole checkpoint")
        };
        for file in [MODEL_FILE, OPTIMIZER_FILE] {
            assert!(read(&whole, file) == read(&stopped, file), "{what}: {file}");
        }
    }
}

/// A checkpoint of one optimizer can't be resumed with another.
#[test]
fn another_optimizers_state_is_refused() {
    let plain = Setup::default();
    let lion = Setup { optimizer: Optimizer { rule: LION, ..plain.optimizer }, ..plain.clone() };
    let frozen = frozen(&plain, &[".h.0."]);
    for (first, second) in [(&plain, &lion), (&lion, &plain), (&plain, &frozen), (&frozen, &plain)] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let folder = folder.path().join("run");
        let (_, _, checkpoint) = first.run(&folder, &Start::Fresh, |_: &_, _: &_| {});
        let start = Start::Resume(checkpoint.expect("a checkpoint"));
        let refused = second.try_run(&folder, &start, |_: &_, _: &_| {});
        let error = refused.expect_err("another run's state").to_string();
        assert!(error.contains("other optimizer") || error.contains("exp_avg"), "{error}");
    }
}

/// For each family, the frozen parameters: the last blocks, the first ones, biases, norms, embeddings.
#[test]
fn frozen_weights_keep_their_bits_and_others_learn() {
    let choices: [&[&str]; 5] = [
        &["h.1.", "layers.1.", "block.1."],
        &["h.0.", "layers.0.", "encoder"],
        &["norm", "ln_"],
        &["wte", "embed", "shared", "lm_head"],
        &["weight"],
    ];
    for (family, setup) in families() {
        for choice in choices {
            let names = setup.model.parameter_names();
            let matching = names.iter().filter(|name| choice.iter().any(|part| name.contains(part))).count();
            if matching == 0 || matching == names.len() {
                continue;
            }
            let setup = frozen(&setup, choice);
            let folder = tempfile::tempdir().expect("a temporary folder");
            let (_, report, checkpoint) = setup.run(&folder.path().join("run"), &Start::Fresh, |_: &_, _: &_| {});
            assert_eq!(report.losses.len(), 12);
            let (mut before, mut after) = (setup.engine(), setup.engine());
            before.initialize(setup.seed).expect("a loaded plan");
            load_weights(&mut after, &checkpoint.expect("a checkpoint")).expect("all weights are saved");
            for parameter in before.parameters() {
                let name = before.name(parameter.tensor);
                let [old, new] = [&before, &after].map(|engine| engine.view(parameter.tensor).expect("a weight"));
                assert_eq!(old == new, setup.shape.frozen.contains(name), "{family} without {choice:?}: {name}");
            }
        }
    }
}

/// Without clipping, each parameter's update is independent: freezing others does not change the first update.
#[test]
fn freezing_does_not_change_the_first_update_of_the_rest() {
    for (family, setup) in families() {
        let setup = Setup { steps: 1, ..open_to_all(&setup, AdamW::default().into()) };
        let names = setup.model.parameter_names();
        let weights = |setup: &Setup| {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let (_, report, checkpoint) = setup.run(&folder.path().join("run"), &Start::Fresh, |_: &_, _: &_| {});
            let mut engine = setup.engine();
            load_weights(&mut engine, &checkpoint.expect("a checkpoint")).expect("all weights are saved");
            let of = |p: &plimsoll_graph::Parameter| engine.view(p.tensor).expect("a weight").into_owned();
            (bits(&all_losses(&report, 1)), engine.parameters().iter().map(of).collect::<Vec<_>>())
        };
        let all = weights(&setup);
        for parity in [0, 1] {
            let frozen =
                (0..names.len()).filter(|i| i % 2 == parity).map(|i| names[i].clone()).collect::<BTreeSet<_>>();
            let shape = TrainShape { frozen: frozen.clone(), ..setup.shape.clone() };
            let part = weights(&Setup { shape, ..setup.clone() });
            assert_eq!(part.0, all.0, "{family}: the loss");
            for (name, (part, all)) in names.iter().zip(part.1.iter().zip(&all.1)) {
                assert!(frozen.contains(name) || part == all, "{family}: {name}");
            }
        }
    }
}

#[test]
fn levers_change_no_bit_of_a_run_with_frozen_parameters() {
    for (family, setup) in families() {
        let setup = open_to_all(&setup, AdamW::default().into());
        let setup = frozen(&setup, &["h.0.", "layers.0.", "encoder.block.0."]);
        assert_levers_change_no_bit(family, &setup);
        let levers = Levers { precision: Precision::Bf16, ..setup.levers };
        assert_levers_change_no_bit(family, &Setup { levers, ..setup });
    }
}

/// A frozen parameter has no gradient, no moment and no remainder, and no product computes its gradient.
#[test]
fn a_frozen_parameter_costs_its_weight_alone() {
    let setup = open_to_all(&Setup::default(), AdamW::default().into());
    let parts = [".h.0.", "wpe"];
    let with = |setup: &Setup, precision| {
        let levers = Levers { precision, ..Levers::default() };
        Setup { levers, ..setup.clone() }.plan()
    };
    for precision in [Precision::Fp32, Precision::Bf16, Precision::Bf16Pure] {
        let ((_, whole), (graph, plan)) = (with(&setup, precision), with(&frozen(&setup, &parts), precision));
        let is_frozen = |name: &str| parts.iter().any(|part| name.contains(part));
        for tensor in &graph.tensors {
            let is_cost = matches!(tensor.role, Role::Gradient | Role::Optimizer);
            assert!(!(is_cost && is_frozen(&tensor.name)), "{precision:?}: {}", tensor.name);
        }
        let frozen = graph.parameters.iter().filter(|p| p.training.is_none());
        let elements = frozen.map(|p| graph[p.tensor].ty.elements() as u64).sum::<u64>();
        assert!(elements > 0);
        assert_eq!((plan.parameters, plan.trained_parameters), (whole.parameters, whole.parameters - elements));
        // Two moments, and in bf16 the remainder.
        let a_parameter = if precision == Precision::Bf16 { 10 } else { 8 };
        let saved = whole.breakdown.optimizer_bytes - plan.breakdown.optimizer_bytes;
        // Tensors are rounded up to whole alignments.
        assert!((elements * a_parameter..elements * a_parameter * 2).contains(&saved), "{precision:?}: {saved}");
        assert!(plan.peak().0 < whole.peak().0);
    }
    let nodes = |setup: &Setup| {
        let (graph, _) = with(setup, Precision::Fp32);
        let step = graph.program(ProgramKind::MicroStep).expect("a graph that trains").nodes.clone();
        let products = step.iter().filter(|n| matches!(n.op, Op::LinearWeightGrad(_))).count();
        let inputs = step.iter().filter(|n| matches!(n.op, Op::LinearInputGrad(_))).count();
        (products, inputs)
    };
    let (products, inputs) = nodes(&setup);
    // Four products of a block; if the first blocks are frozen, no gradient passes back through them.
    let without_first = frozen(&setup, &["wte", "wpe", ".h.0."]);
    assert_eq!(nodes(&without_first), (products - 4, inputs - 4));
}
