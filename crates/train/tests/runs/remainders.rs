//! Weights in bf16 with remainders train the same wherever the optimizer is, bit for bit, and produce the same checkpoints.

use crate::resume::{assert_same_run, last_checkpoint, run_with_stops, stop_after};
use crate::support::{Outcome, Setup, tiny_gpt2};
use plimsoll_graph::models::{Gpt2Config, ModelConfig};
use plimsoll_graph::ops::StateFormat;
use plimsoll_graph::optimizers::{AdamW, Lion};
use plimsoll_graph::{DType, MemoryId, Optimizer};
use plimsoll_plan::{Average, Levers, Precision};
use plimsoll_train::Start;
use plimsoll_train::checkpoint::{AVERAGE_FILE, MODEL_FILE};
use safetensors::{Dtype, SafeTensors};
use std::fs;

/// A run in bf16, wide enough that some moments are quantized.
fn in_bf16(levers: Levers) -> Setup {
    let model = ModelConfig::Gpt2(Gpt2Config { n_embd: 48, ..tiny_gpt2() });
    Setup { model, levers: Levers { precision: Precision::Bf16, ..levers }, ..Setup::default() }
}

/// The same with a part of the optimizer on the host, which updates masters and their remainders.
fn with_masters(setup: &Setup, part: f64) -> Setup {
    Setup { levers: Levers { optimizer_offload: part, ..setup.levers }, ..setup.clone() }
}

/// The number of trained parameters, and of those whose master and remainder are on the host.
fn kept(setup: &Setup) -> [usize; 2] {
    let (graph, plan) = setup.plan();
    let training = graph.parameters.iter().filter_map(|p| p.training.as_ref()).collect::<Vec<_>>();
    for of_parameter in &training {
        let remainder = &plan[of_parameter.remainder.expect("a weight in bf16 has a remainder")];
        let memory = if of_parameter.master.is_some() { MemoryId::HOST } else { MemoryId::DEVICE };
        assert_eq!((remainder.dtype(), remainder.memory), (DType::I16, memory));
    }
    let masters = training.iter().filter_map(|t| t.master).collect::<Vec<_>>();
    assert!(masters.iter().all(|&id| plan[id].dtype() == DType::Bf16 && plan[id].memory == MemoryId::HOST));
    [training.len(), masters.len()]
}

#[test]
fn weights_with_remainders_train_the_same_wherever_the_optimizer_is() {
    let lion = Optimizer { rule: Lion::default().into(), ..Optimizer::default() };
    let adamw = Optimizer { rule: AdamW::default().into(), ..Optimizer::default() };
    for (optimizer, optimizer_state, memory) in [
        (adamw, StateFormat::F32, Some(MemoryId::DEVICE)),
        (adamw, StateFormat::Bf16, None),
        (adamw, StateFormat::Blockwise8, Some(MemoryId::HOST)),
        (lion, StateFormat::F32, None),
    ] {
        let what = format!("{} {optimizer_state:?}, average on {memory:?}", optimizer.rule.name());
        let average = memory.map(|memory| Average { decay: 0.9, memory });
        let plain = in_bf16(Levers { optimizer_state, average, ..Levers::default() });
        let plain = Setup { optimizer, ..plain };
        let parent = tempfile::tempdir().expect("a temporary folder");
        let expected = run_with_stops(&plain, &parent.path().join("remainders"), &[]);
        assert_eq!(kept(&plain)[1], 0, "{what}");
        for part in [0.4, 1.0] {
            let moved = with_masters(&plain, part);
            let [all, masters] = kept(&moved);
            assert!(masters > 0 && (masters < all) == (part < 1.0), "{what}: {masters} of {all} at {part}");
            let found = run_with_stops(&moved, &parent.path().join(format!("masters-{part}")), &[]);
            assert_same_run(&format!("{what}, {part} on the host"), &plain, &found, &expected);
            if average.is_some() {
                let averages =
                    |outcome: &Outcome| fs::read(last_checkpoint(outcome).join(AVERAGE_FILE)).expect("averages");
                assert!(averages(&found) == averages(&expected), "averages differ, {what}");
            }
        }
    }
}

/// Checkpoints have weights in single precision, so they can be resumed wherever the optimizer is.
#[test]
fn invariant_7_a_run_with_remainders_is_resumed_with_its_optimizer_elsewhere() {
    let parent = tempfile::tempdir().expect("a temporary folder");
    let plain = in_bf16(Levers::default());
    let whole = run_with_stops(&plain, &parent.path().join("whole"), &[]);
    let folder = parent.path().join("moved");
    let mut start = Start::Fresh;
    for (part, last) in [(0.0, 3), (1.0, 6), (0.5, 9), (0.0, u64::MAX)] {
        let outcome = with_masters(&plain, part).run(&folder, &start, stop_after(last));
        let checkpoint = last_checkpoint(&outcome).clone();
        let file = fs::read(checkpoint.join(MODEL_FILE)).expect("a whole checkpoint");
        let tensors = SafeTensors::deserialize(&file).expect("a whole checkpoint");
        assert!(tensors.tensors().iter().all(|(_, tensor)| tensor.dtype() == Dtype::F32), "{part} on the host");
        // In the layout of the format's own library.
        let views = tensors.tensors();
        let metadata = Some([("format".to_owned(), "pt".to_owned())].into());
        assert!(safetensors::serialize(views, metadata).expect("tensors") == file, "{part} on the host");
        start = Start::Resume(checkpoint);
        if last == u64::MAX {
            assert_same_run("on the device, on the host, some of each, on the device", &plain, &outcome, &whole);
        }
    }
}
