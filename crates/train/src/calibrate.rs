//! Calibrates this machine: runs small training runs of several shapes and times each node, so that the times of other
//! plans can be predicted. Also tests it: compares predicted with measured times of many plans.

use crate::{Engine, Footprint, TimedStep, TrainError, bench};
use plimsoll_exec::{Device, DeviceError};
use plimsoll_graph::models::{Gpt2Config, ModelConfig};
use plimsoll_graph::ops::StateFormat;
use plimsoll_graph::{DType, DeviceKind, Graph, Optimizer, Target, Targets};
use plimsoll_plan::{
    Level, Levers, Machine, Plan, PlanError, Precision, Rates, Recompute, Request, Sample, Settings, plan_settings,
};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Why calibration failed.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// A run can't be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A run failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The device can't be opened, or none of the runs fits on it.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Creates the device to measure, a new one for each run.
pub type MakeDevice<'a> = &'a dyn Fn() -> Result<Box<dyn Device>, DeviceError>;

impl CalibrationError {
    /// The device's error, if the device failed.
    pub fn of_device(&self) -> Option<&DeviceError> {
        match self {
            Self::Device(error) | Self::Train(TrainError::Device(error)) => Some(error),
            Self::Plan(_) | Self::Train(_) => None,
        }
    }
}

/// A training run to be timed.
#[derive(Debug, Clone)]
pub struct TimedRun {
    request: Request,
    settings: Settings,
}

/// Sizes of a model: blocks, channels, heads, vocabulary.
type Sizes = [usize; 4];

impl TimedRun {
    fn new(sizes: Sizes, seq_len: usize, batches: [usize; 2], levers: Levers, targets: &Targets) -> Self {
        let [n_layer, n_embd, n_head, vocab_size] = sizes;
        let model = ModelConfig::Gpt2(Gpt2Config {
            vocab_size,
            n_positions: seq_len,
            n_embd,
            n_layer,
            n_head,
            n_inner: None,
            attn_pdrop: 0.0,
            embd_pdrop: 0.0,
            resid_pdrop: 0.0,
            layer_norm_epsilon: 1e-5,
            initializer_range: 0.02,
            bias: true,
        });
        Self::of(model, seq_len, batches, levers, targets)
    }

    fn of(model: ModelConfig, seq_len: usize, batches: [usize; 2], levers: Levers, targets: &Targets) -> Self {
        let [global_batch, micro_batch] = batches;
        let rows = micro_batch * seq_len;
        let device = targets.device.kind();
        let head_chunk = plimsoll_plan::default_head_chunk(rows, model.vocab_size(), device);
        let request = Request {
            optimizer: Optimizer { grad_clip: None, ..Optimizer::default() },
            global_batch,
            micro_batch: Some(micro_batch),
            seq_len,
            target_len: model.takes_pairs().then_some(seq_len),
            ..Request::new(model, *targets, Machine::of_rates(Rates::guess(targets.host.threads())))
        };
        Self { request, settings: Settings { micro_batch, head_chunk, levers } }
    }

    /// Computes this many rows of logits at a time: fewer rows mean more passes over the head's weight.
    fn with_head_chunk(mut self, rows: usize) -> Self {
        self.settings.head_chunk = rows;
        self
    }

    /// A preset with fewer blocks or ids, as if its config.json said so.
    fn smaller(preset: &str, changes: &[(&str, u64)]) -> ModelConfig {
        let model = ModelConfig::preset(preset).expect("a preset");
        let mut config: serde_json::Value = serde_json::from_str(&model.to_json()).expect("our own file");
        for &(key, value) in changes {
            config[key] = value.into();
        }
        ModelConfig::from_json(&config.to_string()).expect("a preset of fewer blocks")
    }

    /// The runs of a calibration. They include every kind of node that a lever adds.
    fn standard(targets: &Targets) -> Vec<Self> {
        match targets.device.kind() {
            DeviceKind::Cpu => Self::for_processors(targets),
            DeviceKind::Cuda => Self::for_cards(targets),
        }
    }

    /// From shapes that take less time than their kernel launches to realistic ones. Smaller ones come first, so that a
    /// calibration that runs out of time still covers a range of shapes.
    fn for_cards(targets: &Targets) -> Vec<Self> {
        let plain = Levers::default();
        let half = Levers { precision: half_precision(targets.device), ..plain };
        let again = Levers { recompute: Recompute::all(Level::Block), ..half };
        let moved = Levers { optimizer_offload: 1.0, ..half };
        // Gradients are used for the update one by one, as soon as each is complete.
        let early = Levers { update_in_backward: true, ..half };
        let coarse = Levers { optimizer_state: StateFormat::Blockwise8, ..half };
        let fine = Levers { optimizer_state: StateFormat::Bf16, ..half };
        let run = |sizes, seq_len, batches, levers| Self::new(sizes, seq_len, batches, levers, targets);
        let llama = Self::smaller("smollm2-135m", &[("num_hidden_layers", 2), ("vocab_size", 16_000)]);
        let short = [("num_layers", 1), ("num_decoder_layers", 1), ("vocab_size", 16_000)];
        let [older, newer] = ["t5-small", "flan-t5-small"].map(|preset| Self::smaller(preset, &short));
        // Data that fits a card's L2 cache moves twice as fast as data that does not.
        let wide_llama = Self::smaller("llama-3.2-1b", &[("num_hidden_layers", 1), ("vocab_size", 16_000)]);
        let [wide_older, wide_newer] = ["t5-base", "flan-t5-base"].map(|preset| Self::smaller(preset, &short));
        let other =
            |model: &ModelConfig, seq_len, batches, levers| Self::of(model.clone(), seq_len, batches, levers, targets);
        let mut runs = vec![
            run([1, 32, 1, 64], 32, [2, 1], half),
            run([2, 256, 4, 4_000], 256, [4, 2], plain),
            run([2, 256, 4, 4_000], 256, [16, 16], again),
            run([2, 768, 12, 50_257], 512, [2, 1], half),
            run([2, 768, 12, 50_257], 512, [2, 2], plain),
            run([2, 768, 12, 50_257], 1024, [8, 4], again),
            run([2, 768, 12, 50_257], 1024, [8, 4], again).with_head_chunk(256),
            run([2, 768, 12, 50_257], 1024, [4, 4], coarse),
            run([2, 768, 12, 50_257], 1024, [4, 4], moved),
            other(&llama, 1024, [8, 4], again),
            other(&llama, 2048, [2, 2], fine),
            other(&llama, 256, [4, 4], plain),
            other(&older, 512, [16, 8], again),
            other(&newer, 512, [16, 16], half),
            other(&newer, 256, [8, 8], plain),
            run([2, 1024, 16, 50_257], 1024, [8, 8], early),
            run([1, 1600, 25, 50_257], 1024, [4, 2], half),
            run([1, 1600, 25, 50_257], 1024, [2, 1], plain),
            run([1, 4096, 32, 16_000], 2048, [2, 1], half),
            run([2, 768, 12, 50_257], 1024, [32, 32], half),
            other(&wide_older, 512, [64, 64], half),
            other(&wide_newer, 512, [64, 64], half),
            other(&wide_llama, 2048, [8, 8], half),
        ];
        if targets.device.has_fp8() {
            let rounded = Levers { precision: Precision::Fp8, ..plain };
            runs.push(run([2, 768, 12, 50_257], 1024, [8, 4], rounded));
            runs.push(run([1, 4096, 32, 16_000], 2048, [2, 1], rounded));
            runs.push(other(&wide_llama, 2048, [8, 8], rounded));
        }
        runs
    }

    /// From small shapes to those of GPT-2.
    fn for_processors(targets: &Targets) -> Vec<Self> {
        let plain = Levers::default();
        let again = Levers { recompute: Recompute::all(Level::Block), ..plain };
        let moved = Levers { optimizer_offload: 1.0, ..plain };
        let coarse = Levers { precision: Precision::Bf16, optimizer_state: StateFormat::Blockwise8, ..plain };
        let fine = Levers { precision: Precision::Fp16, optimizer_state: StateFormat::Bf16, ..plain };
        let half = Levers { precision: Precision::Bf16, ..plain };
        let half_again = Levers { recompute: again.recompute, ..half };
        let half_moved = Levers { optimizer_offload: 1.0, ..half };
        let run = |sizes, seq_len, batches, levers| Self::new(sizes, seq_len, batches, levers, targets);
        let llama = Self::smaller("smollm2-135m", &[("num_hidden_layers", 2), ("vocab_size", 4_000)]);
        let short = [("num_layers", 1), ("num_decoder_layers", 1), ("vocab_size", 4_000)];
        let [older, newer] = ["t5-small", "flan-t5-small"].map(|preset| Self::smaller(preset, &short));
        let other =
            |model: &ModelConfig, seq_len, batches, levers| Self::of(model.clone(), seq_len, batches, levers, targets);
        vec![
            other(&llama, 128, [8, 4], again),
            other(&llama, 512, [2, 2], coarse),
            other(&older, 64, [16, 8], again),
            other(&newer, 192, [8, 8], plain),
            other(&newer, 192, [8, 8], coarse),
            other(&llama, 128, [8, 4], half_again),
            other(&older, 64, [16, 8], half_again),
            // Deep enough that weights have left the caches before they are used again.
            run([6, 448, 7, 3_000], 160, [2, 1], plain),
            run([8, 384, 6, 2_000], 256, [2, 1], plain),
            run([12, 256, 4, 2_000], 128, [4, 1], again),
            run([5, 512, 8, 4_000], 192, [4, 1], again),
            run([5, 512, 8, 4_000], 192, [4, 1], half_again),
            run([6, 256, 4, 6_000], 256, [2, 1], coarse),
            run([2, 512, 8, 4_000], 192, [8, 8], coarse),
            run([2, 256, 4, 1_000], 128, [4, 4], coarse),
            run([4, 128, 4, 256], 64, [64, 32], plain),
            run([4, 128, 4, 256], 64, [8, 4], again),
            run([2, 384, 6, 256], 256, [24, 12], plain),
            run([2, 256, 4, 2_000], 128, [16, 8], plain),
            run([2, 256, 4, 2_000], 128, [8, 4], moved),
            run([2, 256, 4, 2_000], 128, [16, 16], coarse),
            run([2, 256, 4, 2_000], 128, [4, 2], fine),
            run([2, 512, 8, 4_000], 192, [16, 8], plain),
            run([2, 512, 8, 4_000], 192, [16, 8], plain).with_head_chunk(96),
            run([2, 512, 8, 4_000], 192, [16, 8], half).with_head_chunk(96),
            run([2, 384, 6, 256], 256, [24, 12], half),
            run([2, 256, 4, 2_000], 128, [8, 4], half_moved),
            run([2, 320, 5, 12_000], 128, [32, 32], moved),
            run([1, 768, 12, 50_257], 256, [4, 4], again),
            run([1, 768, 12, 50_257], 256, [4, 4], again).with_head_chunk(64),
            run([1, 768, 12, 50_257], 256, [2, 1], moved),
            run([1, 768, 12, 50_257], 256, [4, 4], half_again),
            run([1, 768, 12, 50_257], 256, [2, 1], half_moved),
            run([1, 1024, 16, 8_000], 512, [2, 1], plain),
            run([1, 1024, 16, 8_000], 512, [2, 1], half),
            run([1, 768, 12, 8_000], 1024, [2, 2], coarse),
        ]
    }

    /// The runs of the comparison: one model, planned in many ways.
    fn comparison(targets: &Targets) -> Vec<Self> {
        let levers = |level, optimizer_offload| Levers {
            recompute: Recompute::all(level),
            optimizer_offload,
            ..Levers::default()
        };
        let half = Levers { precision: half_precision(targets.device), ..Levers::default() };
        let coarse = Levers { optimizer_state: StateFormat::Blockwise8, ..Levers::default() };
        let half_again = Levers { recompute: Recompute::all(Level::Block), ..half };
        let half_moved = Levers { optimizer_offload: 1.0, ..half };
        let in_backward = Levers { update_in_backward: true, ..Levers::default() };
        let ways = [
            (16, levers(Level::None, 0.0)),
            (16, levers(Level::Cheap, 0.0)),
            (16, levers(Level::Attention, 0.0)),
            (16, levers(Level::Block, 0.0)),
            (16, levers(Level::None, 1.0)),
            (16, in_backward),
            (16, half),
            (16, coarse),
            (4, levers(Level::None, 0.0)),
            (4, levers(Level::Block, 0.0)),
            (4, levers(Level::None, 0.5)),
            (1, levers(Level::None, 0.0)),
            (1, levers(Level::Attention, 0.0)),
            (1, levers(Level::Block, 1.0)),
            (4, half),
            (16, half_again),
            (2, levers(Level::Block, 0.5)),
            (1, half),
            (16, Levers { recompute: Recompute::all(Level::Cheap), ..half }),
            (16, half_moved),
            (4, half_again),
            (1, half_again),
        ];
        let (sizes, seq_len) = match targets.device.kind() {
            DeviceKind::Cpu => ([4, 320, 5, 4_000], 192),
            DeviceKind::Cuda => ([6, 768, 12, 16_000], 512),
        };
        let run = |(micro_batch, levers)| Self::new(sizes, seq_len, [16, micro_batch], levers, targets);
        ways.into_iter().map(run).collect()
    }

    fn planned(&self) -> Result<(Graph, Plan), PlanError> {
        plan_settings(&self.request, self.settings)
    }
}

/// The default half precision of plans for a device.
fn half_precision(target: Target) -> Precision {
    match target {
        Target::Cuda { compute_capability: (..8, _), .. } => Precision::Fp16,
        Target::Cuda { .. } | Target::Cpu { .. } => Precision::Bf16,
    }
}

/// Progress of a calibration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// Completed runs, including those of an earlier calibration.
    pub done: usize,
    /// Number of all runs.
    pub all: usize,
}

/// The result of a calibration.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibration {
    /// One sample per kind of node.
    pub samples: Vec<Sample>,
    /// Progress: time may run out before all runs are complete.
    pub stage: Stage,
    /// The memory footprint of the measurements.
    pub footprint: Footprint,
}

/// Times the standard runs after the first `skipped` and returns the measurements. After `at_most`, starts no further
/// run except the first of these; skips runs that do not fit on the device. Calls `report` with the measurements so far
/// after each run.
/// Errors: the device can't be opened, none of the runs fits on it, or it fails.
pub fn calibrate(
    targets: &Targets,
    device: MakeDevice,
    at_most: Option<Duration>,
    skipped: usize,
    report: &mut dyn FnMut(Stage, Vec<Sample>),
) -> Result<Calibration, CalibrationError> {
    const STEPS: u64 = 4;
    let start = Instant::now();
    let runs = TimedRun::standard(targets);
    let mut alone = None::<CostOfBeingTimed>;
    let mut found = BTreeMap::<NodeKind, Vec<f64>>::new();
    let mut footprint = None::<Footprint>;
    let all = runs.len();
    let (mut no_room, mut stage, mut is_further) = (None, Stage { done: skipped.min(all), all }, false);
    for (index, run) in runs.iter().enumerate() {
        // The first run measures the overhead of timing.
        if (1..skipped).contains(&index) {
            continue;
        }
        if is_further && at_most.is_some_and(|most| start.elapsed() >= most) {
            break;
        }
        let (graph, plan) = run.planned()?;
        let mut engine = match Engine::new(device()?, &graph, plan) {
            Ok(engine) => engine,
            Err(TrainError::Device(error @ DeviceError::NoRoom { .. })) => {
                no_room = Some(error);
                stage.done = stage.done.max(index + 1);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let steps_as_they_are = if alone.is_none() { STEPS } else { 0 };
        let in_steps = bench(&mut engine, run.request.model.vocab_size(), 1, steps_as_they_are, 1)?.step_ms;
        engine.start_profile();
        bench(&mut engine, run.request.model.vocab_size(), 0, STEPS, 1)?;
        let steps = engine.profile().map_or_else(Vec::new, |profile| profile.steps(engine.plan()));
        // The first run is the smallest: nearly all its time is the overhead of timing.
        let cost = *alone.get_or_insert_with(|| CostOfBeingTimed::of(&in_steps, &steps));
        for step in steps {
            let Sample { device, op, dtype, flops, bytes, operands, seconds } = cost.taken_from(step.sample);
            found.entry((device, op, dtype, flops, bytes, operands)).or_default().push(seconds);
        }
        let later = engine.memory().footprint;
        footprint = Some(footprint.map_or(later, |earlier| earlier.then(later)));
        stage.done = stage.done.max(index + 1);
        is_further |= index >= skipped;
        report(stage, samples_of(&found));
    }
    match (footprint, no_room) {
        (Some(footprint), _) => Ok(Calibration { samples: samples_of(&found), stage, footprint }),
        (None, Some(error)) => Err(error.into()),
        (None, None) => unreachable!("a run is timed or does not fit"),
    }
}

/// A kind of node: device, op, dtype and sizes.
type NodeKind = (DeviceKind, String, DType, u64, u64, usize);

/// The typical time of each kind of node.
fn samples_of(found: &BTreeMap<NodeKind, Vec<f64>>) -> Vec<Sample> {
    let sample = |((device, op, dtype, flops, bytes, operands), times): (&NodeKind, &Vec<f64>)| {
        let mut times = times.clone();
        times.sort_by(f64::total_cmp);
        let (op, seconds) = (op.clone(), times[times.len() / 2]);
        Sample { device: *device, op, dtype: *dtype, flops: *flops, bytes: *bytes, operands: *operands, seconds }
    };
    // Nodes below the clock's resolution are left to be estimated.
    found.iter().map(sample).filter(|sample| sample.seconds > 0.0).collect()
}

/// The overhead on a card of timing nodes one by one; without timing, nodes follow one another without the host. A
/// processor has no such overhead.
#[derive(Debug, Clone, Copy, PartialEq)]
struct CostOfBeingTimed {
    /// Seconds that waiting for a node adds.
    each: f64,
    /// Seconds that the typical smallest node takes within a step.
    least: f64,
}

impl CostOfBeingTimed {
    /// Computed from the times of whole optimizer steps, in ms, and from their nodes timed one by one, each of which
    /// occurs once per step.
    fn of(in_steps_ms: &[f64], timed: &[TimedStep]) -> Self {
        let nodes = timed.len().max(1) as f64;
        let in_step = in_steps_ms.iter().copied().fold(f64::INFINITY, f64::min) * 1e-3 / nodes;
        let by_one = timed.iter().map(|step| step.sample.seconds).sum::<f64>() / nodes;
        Self { each: (by_one - in_step).max(0.0), least: in_step.min(by_one) }
    }

    fn taken_from(self, sample: Sample) -> Sample {
        match sample.device {
            DeviceKind::Cpu => sample,
            DeviceKind::Cuda => {
                let seconds = (sample.seconds - self.each).max(self.least.min(sample.seconds));
                Sample { seconds, ..sample }
            }
        }
    }
}

/// A plan's predicted and measured step time.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Comparison {
    /// The settings of its levers.
    pub settings: String,
    /// Predicted time per step.
    pub predicted_ms: f64,
    /// Median of the measured times.
    pub measured_ms: f64,
}

/// Predicts and measures the step times of one model's plans. The plans take turns, so that other load on the machine
/// affects all alike.
pub fn compare_predictions(
    machine: &Machine,
    targets: &Targets,
    device: MakeDevice,
    report: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Comparison>, CalibrationError> {
    // Times on a card vary less.
    let rounds = if targets.device.kind() == DeviceKind::Cpu { 7 } else { 3 };
    let runs = TimedRun::comparison(targets);
    let mut times = vec![Vec::new(); runs.len()];
    for round in 0..rounds {
        for (index, run) in runs.iter().enumerate() {
            report(round * runs.len() + index, rounds * runs.len());
            let (graph, plan) = run.planned()?;
            let mut engine = Engine::new(device()?, &graph, plan)?;
            times[index].extend(bench(&mut engine, run.request.model.vocab_size(), 1, 2, 1)?.step_ms);
        }
    }
    report(rounds * runs.len(), rounds * runs.len());
    runs.iter()
        .zip(times)
        .map(|(run, times)| {
            let (graph, plan) = run.planned()?;
            let Levers { recompute, precision, optimizer_state, optimizer_offload, update_in_backward, .. } =
                run.settings.levers;
            Ok(Comparison {
                settings: format!(
                    "micro-batch {}, recompute {:?}, {precision:?}, moments {optimizer_state:?}, offload {optimizer_offload}{}",
                    run.settings.micro_batch,
                    recompute.rest,
                    if update_in_backward { ", update in backward" } else { "" }
                ),
                predicted_ms: 1e3 * machine.step(&graph, plan.accumulation, targets).0,
                measured_ms: crate::percentile(&times, 0.5).unwrap_or(f64::NAN),
            })
        })
        .collect()
}

/// How well predictions agree with measurements.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Agreement {
    /// Spearman's rank correlation.
    pub rank_correlation: f64,
    /// Median of |predicted / measured - 1|.
    pub median_error: f64,
    /// Measured time of the plan with the shortest prediction, divided by the shortest measured time.
    pub picked_over_fastest: f64,
}

/// Evaluates comparisons; needs at least two.
pub fn agreement(comparisons: &[Comparison]) -> Agreement {
    let predicted = comparisons.iter().map(|c| c.predicted_ms).collect::<Vec<_>>();
    let measured = comparisons.iter().map(|c| c.measured_ms).collect::<Vec<_>>();
    let errors = comparisons.iter().map(|c| (c.predicted_ms / c.measured_ms - 1.0).abs()).collect::<Vec<_>>();
    let picked = (0..predicted.len()).min_by(|&a, &b| predicted[a].total_cmp(&predicted[b]));
    let fastest = measured.iter().copied().fold(f64::INFINITY, f64::min);
    Agreement {
        rank_correlation: correlation(&ranks(&predicted), &ranks(&measured)),
        median_error: crate::percentile(&errors, 0.5).unwrap_or(f64::NAN),
        picked_over_fastest: picked.map_or(f64::NAN, |index| measured[index] / fastest),
    }
}

/// The rank of each value.
fn ranks(values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| values.iter().filter(|other| *other < value).count() as f64).collect()
}

fn correlation(a: &[f64], b: &[f64]) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let covariance = a.iter().zip(b).map(|(a, b)| (a - mean_a) * (b - mean_b)).sum::<f64>();
    let spread = |values: &[f64], mean: f64| values.iter().map(|x| (x - mean).powi(2)).sum::<f64>().sqrt();
    covariance / (spread(a, mean_a) * spread(b, mean_b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::{DType, ProgramKind};
    use plimsoll_plan::Work;

    #[test]
    fn timing_overhead_is_subtracted_on_cards() {
        let sample = |device, seconds| {
            let op = "add".to_owned();
            Sample { device, op, dtype: DType::F32, flops: 1, bytes: 1, operands: 1, seconds }
        };
        let timed = |seconds| TimedStep {
            pass: plimsoll_graph::Pass::Forward,
            nature: plimsoll_graph::ops::Nature::Streaming,
            product: None,
            sample: sample(DeviceKind::Cuda, seconds),
            runs: 1,
        };
        // Three nodes that take 6 us in a step and 60 us timed one by one.
        let cost = CostOfBeingTimed::of(&[0.008, 0.006], &[20e-6, 18e-6, 22e-6].map(timed));
        let left = |device, seconds| cost.taken_from(sample(device, seconds)).seconds;
        assert!((left(DeviceKind::Cuda, 118e-6) - 100e-6).abs() < 1e-9, "{cost:?}");
        assert!((left(DeviceKind::Cuda, 19e-6) - 2e-6).abs() < 1e-9, "not below a typical small node");
        assert!((left(DeviceKind::Cuda, 1e-6) - 1e-6).abs() < 1e-12, "not above the measured time");
        assert!((left(DeviceKind::Cpu, 118e-6) - 118e-6).abs() < 1e-12, "processors have no overhead");
        let nothing = CostOfBeingTimed::of(&[0.080], &[20e-6, 18e-6, 22e-6].map(timed));
        assert!((nothing.taken_from(sample(DeviceKind::Cuda, 30e-6)).seconds - 30e-6).abs() < 1e-12);
    }

    #[test]
    fn agreement_is_judged_by_rank_error_and_choice() {
        let of = |pairs: &[(f64, f64)]| {
            let comparison =
                |&(predicted_ms, measured_ms)| Comparison { settings: String::new(), predicted_ms, measured_ms };
            agreement(&pairs.iter().map(comparison).collect::<Vec<_>>())
        };
        let same = of(&[(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)]);
        assert!((same.rank_correlation - 1.0).abs() < 1e-9);
        assert_eq!((same.median_error, same.picked_over_fastest), (0.5, 1.0));
        let reversed = of(&[(3.0, 1.0), (2.0, 2.0), (1.0, 3.0)]);
        assert!((reversed.rank_correlation + 1.0).abs() < 1e-9);
        assert_eq!(reversed.picked_over_fastest, 3.0);
    }

    /// Products, attention and streaming ops, up to half the size of those in single precision.
    #[test]
    fn processors_are_measured_in_bf16_as_in_single_precision() {
        let targets = Targets::cpu(2);
        let mut largest = BTreeMap::<_, u64>::new();
        for run in TimedRun::standard(&targets) {
            let (graph, _) = run.planned().expect("a run that can be planned");
            use ProgramKind::{HostUpdateAndMicroStep, MicroStep, MicroStepAdd, Update};
            let kinds = [MicroStep, HostUpdateAndMicroStep, MicroStepAdd, Update];
            let nodes = kinds.iter().filter_map(|kind| graph.program(*kind));
            for node in nodes.flat_map(|program| &program.nodes) {
                let work = Work::of(&node.op, &graph.io(&node.inputs, &node.outputs), &targets.device);
                let most = largest.entry((node.op.name(), work.dtype)).or_default();
                *most = (*most).max(work.flops.max(work.bytes));
            }
        }
        let of_dtype = |wanted| largest.iter().filter(move |((_, dtype), _)| *dtype == wanted);
        let lacking = of_dtype(DType::F32)
            .filter(|((op, _), single)| largest.get(&(*op, DType::Bf16)).is_none_or(|half| *half < **single / 2));
        // Gradients of parameters are in single precision in every run.
        assert_eq!(lacking.map(|((op, _), _)| *op).collect::<Vec<_>>(), ["grad_clip", "grad_norm"]);
    }

    /// Ops on whole activations in each layer are timed at sizes beyond the 96 MB of a card's cache, in half precision;
    /// ops that occur once per model need not be.
    #[test]
    fn cards_are_measured_beyond_their_caches() {
        const CACHE_BYTES: u64 = 96 << 20;
        let targets = Targets::cuda((9, 0), 2);
        let mut largest = BTreeMap::<_, u64>::new();
        for run in TimedRun::standard(&targets) {
            let (graph, _) = run.planned().expect("a run that can be planned");
            for node in graph.programs.iter().flat_map(|program| &program.nodes) {
                let work = Work::of(&node.op, &graph.io(&node.inputs, &node.outputs), &targets.device);
                let most = largest.entry((node.op.name(), work.dtype)).or_default();
                *most = (*most).max(work.bytes);
            }
        }
        let in_half = largest.iter().filter(|((_, dtype), _)| dtype.is_half());
        let small = in_half.filter(|(_, bytes)| **bytes <= CACHE_BYTES).map(|((op, _), _)| *op);
        assert_eq!(small.collect::<Vec<_>>(), ["await_transfer", "positions_grad", "scale"]);
    }

    #[test]
    fn each_device_is_compared_in_its_default_half_precision() {
        for (targets, half) in [
            (Targets::cpu(2), Precision::Bf16),
            (Targets::cuda((7, 5), 2), Precision::Fp16),
            (Targets::cuda((8, 6), 2), Precision::Bf16),
        ] {
            let runs = TimedRun::comparison(&targets);
            let in_precision = |wanted| runs.iter().filter(|run| run.settings.levers.precision == wanted).count();
            assert_eq!((in_precision(half), in_precision(Precision::Fp32)), (8, 14), "{targets:?}");
        }
    }
}
