//! NaN and infinity in any tensor of a step, as a broken memory or a bug would leave them: the run ends in that step, or
//! skips its update in fp16, and no checkpoint contains such a value.

use crate::support::{Setup, families, tiny_gpt2};
use plimsoll_exec::{Capabilities, CpuDevice, Device, DeviceError, MemoryReport};
use plimsoll_graph::models::{Gpt2Config, ModelConfig};
use plimsoll_graph::ops::StateFormat;
use plimsoll_graph::{DType, ProgramKind, Scalars, TensorId};
use plimsoll_plan::{Levers, Plan, Precision, Step};
use plimsoll_telemetry::{Event, Sink};
use plimsoll_train::checkpoint::{MODEL_FILE, OPTIMIZER_FILE};
use plimsoll_train::{Ending, Engine, LossScale, RunFolder, Start, Trainer, UnlimitedPace};
use safetensors::{Dtype, SafeTensors};
use std::borrow::Cow;
use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const STEPS: u64 = 3;

/// The step in which a value is planted.
const PLANTED_IN: u64 = 2;

/// A value in a tensor.
#[derive(Debug, Clone, Copy)]
struct Plant {
    program: usize,
    /// The node before which the tensor has the value.
    before: usize,
    tensor: TensorId,
    element: usize,
    value: f32,
}

/// The CPU, with a value planted in one step.
struct Planted {
    cpu: CpuDevice,
    plant: Option<Plant>,
}

impl Planted {
    fn plant(&mut self, plan: &Plan, plant: Plant) -> Result<(), DeviceError> {
        let dtype = plan[plant.tensor].dtype();
        let bits = plant.value.to_bits();
        let bytes = match dtype {
            DType::F16 if plant.value.is_nan() => 0x7e00_u16.to_le_bytes().to_vec(),
            DType::F16 => (0x7c00 | (bits >> 16) as u16 & 0x8000).to_le_bytes().to_vec(),
            DType::Bf16 => ((bits >> 16) as u16).to_le_bytes().to_vec(),
            _ => bits.to_le_bytes().to_vec(),
        };
        self.cpu.write_part(plan, plant.tensor, plant.element as u64 * dtype.size_bytes(), &bytes)
    }
}

impl Device for Planted {
    fn capabilities(&self) -> Capabilities {
        self.cpu.capabilities()
    }
    fn load(&mut self, plan: &Plan) -> Result<(), DeviceError> {
        self.cpu.load(plan)
    }
    fn write(&mut self, plan: &Plan, tensor: TensorId, bytes: &[u8]) -> Result<(), DeviceError> {
        self.cpu.write(plan, tensor, bytes)
    }
    fn write_part(&mut self, plan: &Plan, tensor: TensorId, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.cpu.write_part(plan, tensor, offset, bytes)
    }
    fn read(&mut self, plan: &Plan, tensor: TensorId, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.cpu.read(plan, tensor, bytes)
    }
    fn view(&self, plan: &Plan, tensor: TensorId) -> Result<Cow<'_, [u8]>, DeviceError> {
        self.cpu.view(plan, tensor)
    }
    fn run_program(&mut self, plan: &Plan, program: usize, scalars: &Scalars) -> Result<(), DeviceError> {
        self.cpu.begin(plan, program);
        for (number, step) in plan.programs[program].steps.iter().enumerate() {
            if let Some(plant) = self.plant
                && (plant.program, plant.before, PLANTED_IN) == (program, number, scalars.step)
            {
                self.plant(plan, plant)?;
            }
            self.cpu.run(plan, step, scalars)?;
        }
        Ok(())
    }
    fn run(&mut self, plan: &Plan, step: &Step, scalars: &Scalars) -> Result<(), DeviceError> {
        self.cpu.run(plan, step, scalars)
    }
    fn memory(&self) -> MemoryReport {
        self.cpu.memory()
    }
}

/// Every float tensor that a node of a step reads, at its first reader in each program.
fn tensors(plan: &Plan) -> Vec<(usize, usize, TensorId)> {
    let kinds = [ProgramKind::MicroStep, ProgramKind::MicroStepAdd, ProgramKind::Update];
    let mut found = Vec::new();
    for (number, program) in plan.programs.iter().enumerate().filter(|(_, p)| kinds.contains(&p.name.kind)) {
        let mut seen = HashSet::new();
        for (node, step) in program.steps.iter().enumerate() {
            let floats = step.inputs.iter().copied().filter(|&id| {
                matches!(plan[id].dtype(), DType::F32 | DType::F16 | DType::Bf16) && plan[id].ty.elements() > 0
            });
            found.extend(floats.filter(|&id| seen.insert(id)).map(|id| (number, node, id)));
        }
    }
    found
}

#[derive(Default)]
struct Seen {
    diverged: Option<u64>,
    skipped: Option<u64>,
}

impl Sink for Seen {
    fn take(&mut self, event: &Event) {
        match event {
            Event::Diverged { step, .. } => self.diverged = Some(*step),
            Event::UpdateSkipped { step, .. } => self.skipped = self.skipped.or(Some(*step)),
            _ => {}
        }
    }
}

/// A run that saves every step. Returns its ending, what it reported, and its newest checkpoint's step.
fn run(setup: &Setup, folder: &Path, plant: Option<Plant>) -> (Ending, Seen, u64) {
    let (graph, plan) = setup.plan();
    let device = Planted { cpu: CpuDevice::new(), plant };
    let mut seen = Seen::default();
    let trainer = Trainer {
        engine: &mut Engine::new(Box::new(device), &graph, plan).expect("a sound plan"),
        dataset: &Arc::new(setup.dataset()),
        folder: &RunFolder::open(folder, false).expect("a new folder"),
        config: &setup.config(),
        sinks: vec![&mut seen],
        stop: &AtomicBool::new(false),
        pace: &UnlimitedPace,
    };
    let outcome = trainer.run(&Start::Fresh).expect("no error of the device");
    let saved = outcome.saved.map_or(0, |(step, _)| step);
    (outcome.ending, seen, saved)
}

/// Whether all floats in a run's checkpoints are finite.
fn all_finite(folder: &Path) -> bool {
    (1..=STEPS).all(|step| {
        [MODEL_FILE, OPTIMIZER_FILE].iter().all(|file| {
            let Ok(bytes) = fs::read(folder.join(format!("checkpoints/step-{step:06}/{file}"))) else { return true };
            let tensors = SafeTensors::deserialize(&bytes).expect("a checkpoint");
            tensors.iter().all(|(_, tensor)| {
                let data = tensor.data();
                match tensor.dtype() {
                    Dtype::F32 => data.as_chunks().0.iter().all(|&x| f32::from_le_bytes(x).is_finite()),
                    Dtype::BF16 => data.as_chunks().0.iter().all(|&[_, high]: &[u8; 2]| high & 0x7f != 0x7f),
                    Dtype::F16 => data.as_chunks().0.iter().all(|&[_, high]: &[u8; 2]| high & 0x7c != 0x7c),
                    _ => true,
                }
            })
        })
    })
}

/// How many planted values had each effect.
#[derive(Debug, Default)]
struct Effects {
    /// The run ended in the step, before a checkpoint of it.
    ended: usize,
    /// The step's update was skipped, in fp16.
    skipped: usize,
    /// The node does not use the value: the weights are those of a run without it.
    unused: usize,
    /// The clip factor was NaN, with which no parameter is updated; the norm that it came from was finite.
    without_update: usize,
    /// A function such as a softmax turned the value into a finite one.
    absorbed: usize,
}

/// Plants values in every `stride`-th tensor of a run. `elements`: how many of a tensor's elements.
fn plant(what: &str, setup: &Setup, stride: usize, elements: usize, effects: &mut Effects) {
    let setup =
        Setup { steps: STEPS, checkpoint_every: Some(1), eval_every: None, keep_checkpoints: 9, ..setup.clone() };
    let parent = tempfile::tempdir().expect("a temporary folder");
    let weights = |folder: &Path| {
        let newest = folder.join(format!("checkpoints/step-{STEPS:06}"));
        [MODEL_FILE, OPTIMIZER_FILE].map(|file| fs::read(newest.join(file)).expect("a checkpoint"))
    };
    let clean = parent.path().join("clean");
    let (ending, ..) = run(&setup, &clean, None);
    assert_eq!(ending, Ending::Finished);
    let plan = setup.plan().1;
    for (number, (program, before, tensor)) in tensors(&plan).into_iter().enumerate().step_by(stride) {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for part in 0..elements {
                let element = (plan[tensor].ty.elements() - 1) * part / elements.max(2);
                let plant = Plant { program, before, tensor, element, value };
                let folder = parent.path().join(format!("{number}-{value}-{part}"));
                let (ending, seen, saved) = run(&setup, &folder, Some(plant));
                let what = format!("{what}: `{}` {plant:?}: {ending:?}, saved {saved}", plan[tensor].name);
                assert!(all_finite(&folder), "{what}");
                if ending == Ending::Diverged && seen.diverged == Some(PLANTED_IN) {
                    assert_eq!(saved, PLANTED_IN - 1, "{what}");
                    effects.ended += 1;
                } else if seen.skipped == Some(PLANTED_IN) {
                    effects.skipped += 1;
                } else {
                    assert_eq!(ending, Ending::Finished, "{what}");
                    let is_unused = weights(&folder) == weights(&clean);
                    let is_factor = plan[tensor].name == "grad_clip";
                    assert!(is_unused || is_factor || !value.is_nan(), "{what}: NaN changed the weights");
                    *match (is_unused, is_factor) {
                        (true, _) => &mut effects.unused,
                        (false, true) => &mut effects.without_update,
                        (false, false) => &mut effects.absorbed,
                    } += 1;
                }
                fs::remove_dir_all(&folder).expect("it is there");
            }
        }
    }
}

#[test]
fn nan_and_infinity_in_any_tensor_end_the_run_in_their_step() {
    let mut effects = Effects::default();
    plant("GPT-2", &Setup::default(), 9, 1, &mut effects);
    println!("evidence: {effects:?}");
    assert!(effects.ended > 20, "{effects:?}");
}

/// Produces the figure of `bench/results/reliability.md`.
#[test]
#[ignore = "evidence at scale, minutes: `python3 bench/reliability.py --only nan`"]
fn evidence_of_values_that_are_not_finite() {
    let mut effects = Effects::default();
    for (family, setup) in families() {
        plant(family, &setup, 1, 3, &mut effects);
    }
    let plain = Setup { model: ModelConfig::Gpt2(Gpt2Config { n_embd: 48, ..tiny_gpt2() }), ..Setup::default() };
    for (precision, optimizer_state) in [
        (Precision::Bf16, StateFormat::F32),
        (Precision::Fp16, StateFormat::Bf16),
        (Precision::Bf16Pure, StateFormat::Blockwise8),
    ] {
        let loss_scale = precision.scales_gradients().then(LossScale::default);
        let levers = Levers { precision, optimizer_state, ..plain.levers };
        plant(&format!("{precision:?}"), &Setup { levers, loss_scale, ..plain.clone() }, 1, 3, &mut effects);
    }
    println!("evidence: {effects:?}");
}
