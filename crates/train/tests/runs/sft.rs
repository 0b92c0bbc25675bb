//! Compares supervised fine-tuning with TRL's `SFTTrainer`: ten steps on completions alone, one example in each row or packed, on values
//! stored by `scripts/golden_sft.py`.

use crate::preferences::Golden;
use crate::support::{assert_close, plan_training};
use plimsoll_exec::CpuDevice;
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::{Optimizer, ProgramKind, Scalars, TrainShape};
use plimsoll_plan::{Level, Levers, Recompute};
use plimsoll_train::Engine;

/// Tolerance of the first loss, of values around four.
const FIRST_STEP: f64 = 1e-5;
/// Tolerance after several steps, in which AdamW amplifies rounding.
const LATER_STEPS: f64 = 2e-4;

#[test]
fn ten_steps_of_supervised_fine_tuning_are_trls() {
    let golden = Golden::of(include_bytes!("../golden/sft_llama.safetensors"));
    let model = ModelConfig::from_json(&golden.metadata["config"]).expect("the config of transformers");
    for kind in ["padded", "packed"] {
        let [tokens, targets, segments] =
            ["tokens", "targets", "segments"].map(|name| golden.ints(&format!("{name}.{kind}")));
        let losses = golden.doubles(&format!("losses.{kind}"));
        let [_, rows, length] = golden.shape(&format!("tokens.{kind}"));
        assert_eq!(segments.iter().any(|segment| *segment > 1), kind == "packed");
        let shape = TrainShape {
            micro_batch: rows,
            seq_len: length,
            packed: true,
            accumulates: true,
            head_chunk: 5,
            adapters: Some(golden.adapters()),
            ..TrainShape::default()
        };
        let levers = Levers { recompute: Recompute::all(Level::Block), ..Levers::default() };
        let (graph, plan) = plan_training(&model, &shape, &Optimizer::default(), &levers, rows, 2);
        let mut engine = Engine::new(Box::new(CpuDevice::new()), &graph, plan).expect("memory for a tiny model");
        golden.fill(&graph, &mut engine);
        let of_step = rows * length;
        for (step, &loss) in losses.iter().enumerate() {
            let at = step * of_step..(step + 1) * of_step;
            let ports = graph.program(ProgramKind::MicroStep).expect("a program with a batch").ports.clone();
            for (port, values) in [(ports.tokens, &tokens), (ports.targets, &targets), (ports.segments, &segments)] {
                let values = bytemuck::cast_slice(&values[at.clone()]);
                engine.write(port.expect("it is fed"), values).expect("a tensor of this size");
            }
            let trained = targets[at].iter().filter(|target| **target >= 0).count();
            let scalars = Scalars {
                step: step as u64 + 1,
                update: step as u64 + 1,
                learning_rate: 0.01,
                loss_scale: 1.0 / trained as f32,
                ..Scalars::default()
            };
            engine.run(ProgramKind::MicroStep, &scalars).expect("a sound plan runs");
            let found = f64::from(engine.read_one(ports.loss.expect("a loss")).expect("one value"));
            engine.run(ProgramKind::Update, &scalars).expect("a sound plan runs");
            let tolerance = if step == 0 { FIRST_STEP } else { LATER_STEPS };
            assert_close(&format!("{kind}, step {step}"), &[found], &[loss], tolerance);
        }
    }
}
