//! Compares training on preferences with TRL's `DPOTrainer`, `ORPOTrainer` and `KTOTrainer`: ten steps with each loss, on values stored by
//! `scripts/golden_preferences.py`.

use crate::support::{assert_close, plan_training};
use plimsoll_exec::CpuDevice;
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::ops::PreferenceKind;
use plimsoll_graph::{
    ADAPTER_PREFIX, AdapterFile, Adapters, Graph, Objective, Optimizer, Preferences, ProgramKind, Scalars, TrainShape,
};
use plimsoll_plan::{Level, Levers, Recompute};
use plimsoll_train::Engine;
use safetensors::SafeTensors;
use std::collections::HashMap;

/// Tolerance of the first loss and its rewards, of values around one.
const FIRST_STEP: f64 = 1e-5;
/// Tolerance after several steps, in which AdamW amplifies rounding.
const LATER_STEPS: f64 = 2e-4;

const KINDS: [(&str, PreferenceKind); 7] = [
    ("sigmoid", PreferenceKind::Sigmoid),
    ("robust", PreferenceKind::Robust),
    ("hinge", PreferenceKind::Hinge),
    ("ipo", PreferenceKind::Ipo),
    ("orpo", PreferenceKind::Orpo),
    ("kto", PreferenceKind::Single { liked: 1.5, disliked: 0.75, has_reference_point: true }),
    ("apo_zero_unpaired", PreferenceKind::Single { liked: 1.5, disliked: 0.75, has_reference_point: false }),
];

/// The stored results of TRL.
pub struct Golden {
    archive: SafeTensors<'static>,
    pub metadata: HashMap<String, String>,
}

impl Golden {
    fn read() -> Self {
        Self::of(include_bytes!("../golden/preferences_llama.safetensors"))
    }

    pub fn of(bytes: &'static [u8]) -> Self {
        let archive = SafeTensors::deserialize(bytes).expect("the file in the repository is whole");
        let (_, metadata) = SafeTensors::read_metadata(bytes).expect("the file in the repository is whole");
        Self { archive, metadata: metadata.metadata().clone().expect("the script writes metadata") }
    }

    fn words(&self, name: &str) -> Vec<[u8; 4]> {
        let view = self.archive.tensor(name).unwrap_or_else(|error| panic!("`{name}`: {error}"));
        view.data().as_chunks().0.to_vec()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.words(name).into_iter().map(f32::from_le_bytes).collect()
    }

    pub fn doubles(&self, name: &str) -> Vec<f64> {
        self.floats(name).into_iter().map(f64::from).collect()
    }

    pub fn ints(&self, name: &str) -> Vec<i32> {
        self.words(name).into_iter().map(i32::from_le_bytes).collect()
    }

    fn number(&self, name: &str) -> f32 {
        self.metadata[name].parse().expect("a number")
    }

    /// The three extents of a tensor.
    pub fn shape(&self, name: &str) -> [usize; 3] {
        self.archive.tensor(name).expect("a tensor").shape().try_into().expect("three extents")
    }

    /// Fills an engine's parameters.
    pub fn fill(&self, graph: &Graph, engine: &mut Engine) {
        engine.restart(0).expect("a sound plan");
        for parameter in &graph.parameters {
            assert!(parameter.stored.is_empty(), "Llama's parameters are stored whole");
            let values = self.floats(&format!("weight.{}", graph[parameter.tensor].name));
            engine.write(parameter.tensor, bytemuck::cast_slice(&values)).expect("a tensor of this size");
        }
    }

    pub fn adapters(&self) -> Adapters {
        let views = self.archive.tensors();
        let stored = views.iter().filter_map(|(name, view)| Some((name.strip_prefix("weight.")?, view.shape())));
        let stored = stored.filter(|(name, _)| name.starts_with(ADAPTER_PREFIX)).collect::<Vec<_>>();
        let file = AdapterFile::from_json(&self.metadata["adapters"]).expect("PEFT's own file");
        file.adapters(stored).expect("PEFT's own file")
    }
}

/// The end of the names of a loss's batches.
fn of_batches(kind: PreferenceKind) -> &'static str {
    match kind {
        PreferenceKind::Orpo => ".orpo",
        PreferenceKind::Single { .. } => ".judged",
        _ => "",
    }
}

/// A run with TRL's weights.
fn engine(golden: &Golden, kind: PreferenceKind, micro_batch: usize, levers: &Levers) -> (Graph, Engine) {
    let model = ModelConfig::from_json(&golden.metadata["config"]).expect("the config of transformers");
    if let PreferenceKind::Single { liked, disliked, .. } = kind {
        assert_eq!([liked, disliked], ["liked", "disliked"].map(|name| golden.number(name)));
    }
    let [.., seq_len] = golden.shape(&format!("tokens{}", of_batches(kind)));
    let smoothing = if kind == PreferenceKind::Robust { golden.number("smoothing") } else { 0.0 };
    let shape = TrainShape {
        micro_batch,
        seq_len,
        // The update is a program of its own.
        accumulates: true,
        head_chunk: 7,
        evaluates: true,
        objective: Objective {
            label_smoothing: smoothing,
            preferences: Some(Preferences { kind, beta: golden.number("beta") }),
            ..Objective::default()
        },
        adapters: Some(golden.adapters()),
        ..TrainShape::default()
    };
    let (graph, plan) = plan_training(&model, &shape, &Optimizer::default(), levers, 4, 2);
    let mut engine = Engine::new(Box::new(CpuDevice::new()), &graph, plan).expect("memory for a tiny model");
    golden.fill(&graph, &mut engine);
    (graph, engine)
}

#[test]
fn ten_steps_on_preferences_are_trls() {
    let golden = Golden::read();
    let levers = Levers { recompute: Recompute::all(Level::Block), ..Levers::default() };
    for ((name, kind), micro_batch) in KINDS.into_iter().zip([4, 1, 2, 4, 2, 2, 1]) {
        let of = |end: &str| ["tokens", "targets"].map(|what| golden.ints(&format!("{what}{end}")));
        let batches = of(of_batches(kind));
        let mismatched = kind.has_reference_point().then(|| of(".mismatched"));
        let (graph, mut engine) = engine(&golden, kind, micro_batch, &levers);
        let losses = golden.doubles(&format!("losses.{name}"));
        let of_step = batches[0].len() / losses.len();
        let of_batch = of_step * micro_batch / 4;
        let expected = golden.doubles(&format!("rewards.{name}"));
        for (step, &loss) in losses.iter().enumerate() {
            let at = step * of_step..(step + 1) * of_step;
            let mut reference_point = 0.0;
            let mut feed = |batches: &[Vec<i32>; 2], program: ProgramKind, part: usize, scalars: &Scalars| {
                let ports = graph.program(program).expect("a program with a batch").ports.clone();
                for (port, values) in [ports.tokens, ports.targets].into_iter().zip(batches) {
                    let values = &values[at.clone()][part * of_batch..][..of_batch];
                    engine.write(port.expect("it is fed"), bytemuck::cast_slice(values)).expect("a tensor");
                }
                engine.run(program, scalars).expect("a sound plan runs");
                let mut read = |port, count| {
                    let mut values = vec![0.0; count];
                    engine.read(port, &mut values).expect("a tensor of this size");
                    values.into_iter().map(f64::from).collect::<Vec<f64>>()
                };
                (read(ports.loss.expect("a loss"), 1), read(ports.rewards.expect("rewards"), 3))
            };
            for part in (0..4 / micro_batch).filter(|_| mismatched.is_some()) {
                let batches = mismatched.as_ref().expect("it is some");
                let scalars = Scalars { loss_scale: 0.25, ..Scalars::default() };
                reference_point += feed(batches, ProgramKind::Evaluate, part, &scalars).1[..2].iter().sum::<f64>();
            }
            let reference_point = reference_point.max(0.0) as f32;
            let scalars =
                |samples: usize| Scalars { loss_scale: 1.0 / samples as f32, reference_point, ..Scalars::default() };
            let tolerance = if step == 0 { FIRST_STEP } else { LATER_STEPS };
            let held_out = (0..4 / micro_batch).map(|part| {
                feed(&batches, ProgramKind::Evaluate, part, &scalars(micro_batch)).0[0] / (4 / micro_batch) as f64
            });
            assert_close(&format!("{name}, step {step}, held out"), &[held_out.sum()], &[loss], tolerance);
            let mut found = Default::default();
            for part in 0..4 / micro_batch {
                let program = if part == 0 { ProgramKind::MicroStep } else { ProgramKind::MicroStepAdd };
                found = feed(&batches, program, part, &scalars(4));
            }
            assert_close(&format!("{name}, step {step}, loss"), &found.0, &[loss], tolerance);
            assert_close(
                &format!("{name}, step {step}, rewards"),
                &found.1,
                &expected[3 * step..][..3],
                tolerance * 10.0,
            );
            let scalars = Scalars { update: step as u64 + 1, learning_rate: 1e-2, ..Scalars::default() };
            engine.run(ProgramKind::Update, &scalars).expect("a sound plan runs");
        }
    }
}
