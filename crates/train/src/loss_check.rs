//! Runs the first steps of a model on a device and on the processor: the same seed and random tokens must give the same
//! losses. A small model comes first; if the device is fast enough, `nano` follows.

use crate::bench::random_step;
use crate::calibrate::MakeDevice;
use crate::{CalibrationError, Engine};
use plimsoll_exec::{CpuDevice, Device};
use plimsoll_graph::models::{Gpt2Config, ModelConfig};
use plimsoll_graph::{Graph, Targets};
use plimsoll_plan::{Levers, Machine, Plan, PlanError, Rates, Request, Settings, default_head_chunk, plan_settings};
use std::time::Duration;

/// Maximum relative difference of losses, in single precision.
pub const LOSS_TOLERANCE: f64 = 1e-4;

/// Steps of each model.
const STEPS: u64 = 4;

/// Maximum predicted duration of a step.
const LONGEST: Duration = Duration::from_secs(10);

/// The seed of weights, tokens and dropout.
const SEED: u64 = 1;

/// The first steps of a model on a device and on the processor.
#[derive(Debug, Clone, PartialEq)]
pub struct LossCheck {
    /// The model, in words.
    pub model: &'static str,
    /// Its parameters.
    pub parameters: u64,
    /// Tokens per step.
    pub tokens_per_step: usize,
    /// The shortest step on the device.
    pub step_s: f64,
    /// The device's losses.
    pub losses: Vec<f64>,
    /// The processor's losses.
    pub expected: Vec<f64>,
}

impl LossCheck {
    /// The largest relative difference of two losses; infinite if one is not finite.
    pub fn largest_difference(&self) -> f64 {
        let apart = self.losses.iter().zip(&self.expected).map(|(found, expected)| {
            let apart = (found - expected).abs() / expected.abs();
            if apart.is_nan() { f64::INFINITY } else { apart }
        });
        apart.fold(0.0, f64::max)
    }

    /// Predicted seconds per step of another plan, if time is proportional to parameters and tokens.
    fn step_s_of(&self, plan: &Plan) -> f64 {
        let work = |parameters: u64, tokens: usize| parameters as f64 * tokens as f64;
        let below = work(self.parameters, self.tokens_per_step);
        self.step_s * work(plan.parameters, plan.tokens_per_step()) / below
    }

    /// Whether the difference is within the tolerance.
    pub fn passes(&self) -> bool {
        self.largest_difference() <= LOSS_TOLERANCE
    }
}

/// A training run of a few steps.
#[derive(Debug, Clone)]
struct Trial {
    name: &'static str,
    model: ModelConfig,
    micro_batch: usize,
    seq_len: usize,
}

/// Losses of steps, and the shortest step.
struct Steps {
    losses: Vec<f64>,
    shortest_s: f64,
}

impl Trial {
    /// Starts with a model that takes no time on any device.
    fn all() -> [Self; 2] {
        let nano = ModelConfig::preset("nano").expect("a preset");
        let ModelConfig::Gpt2(config) = &nano else { unreachable!("nano is a GPT-2") };
        let sizes = Gpt2Config { vocab_size: 32, n_positions: 8, n_embd: 16, n_layer: 1, n_head: 2, ..config.clone() };
        let (small, name) = (ModelConfig::Gpt2(sizes), "one block of 16 channels");
        [
            Self { name, model: small, micro_batch: 1, seq_len: 8 },
            Self { name: "nano", seq_len: nano.max_positions(), model: nano, micro_batch: 4 },
        ]
    }

    /// Two micro-batches per step, in single precision.
    fn plan(&self, targets: &Targets) -> Result<(Graph, Plan), PlanError> {
        let machine = Machine::of_rates(Rates::guess(targets.host.threads()));
        let request = Request {
            global_batch: 2 * self.micro_batch,
            micro_batch: Some(self.micro_batch),
            seq_len: self.seq_len,
            ..Request::new(self.model.clone(), *targets, machine)
        };
        let rows = self.micro_batch * self.seq_len;
        let head_chunk = default_head_chunk(rows, self.model.vocab_size(), targets.device.kind());
        plan_settings(&request, Settings { micro_batch: self.micro_batch, head_chunk, levers: Levers::default() })
    }

    fn run(&self, targets: &Targets, device: Box<dyn Device>) -> Result<Steps, CalibrationError> {
        let (graph, plan) = self.plan(targets)?;
        let mut engine = Engine::new(device, &graph, plan)?;
        engine.initialize(SEED)?;
        let mut steps = Steps { losses: Vec::new(), shortest_s: f64::INFINITY };
        for step in 1..=STEPS {
            let ran = random_step(&mut engine, self.model.vocab_size(), SEED, step)?;
            steps.shortest_s = ran.took.as_secs_f64().min(steps.shortest_s);
            steps.losses.push(f64::from(ran.loss));
        }
        Ok(steps)
    }
}

/// Runs the largest of the models for which the device is fast enough, or the first whose losses differ. `device` opens
/// the device; `targets` describe it. Errors: the device fails.
pub fn check_losses(targets: &Targets, device: MakeDevice) -> Result<LossCheck, CalibrationError> {
    let mut done = None::<LossCheck>;
    for trial in Trial::all() {
        let (_, plan) = trial.plan(targets)?;
        let (parameters, tokens_per_step) = (plan.parameters, plan.tokens_per_step());
        if done.as_ref().is_some_and(|below| !below.passes() || below.step_s_of(&plan) > LONGEST.as_secs_f64()) {
            break;
        }
        let found = trial.run(targets, device()?)?;
        let expected = trial.run(&Targets::cpu(targets.host.threads()), Box::new(CpuDevice::new()))?;
        let (model, step_s) = (trial.name, found.shortest_s);
        let (losses, expected) = (found.losses, expected.losses);
        done = Some(LossCheck { model, parameters, tokens_per_step, step_s, losses, expected });
    }
    Ok(done.expect("there is a first model"))
}
