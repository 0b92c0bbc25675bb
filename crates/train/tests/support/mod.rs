//! What the tests of training share: a tiny model, made-up text, and runs of both.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod weights;

use data::{Batches, Dataset, TokenStore};
use exec::{CpuDevice, philox};
use graph::models::{Gpt2Config, ModelConfig};
use graph::{DeviceKind, Graph, Optimizer, Target, TrainShape, build_training};
use plan::{Level, Levers, Plan, Recompute, lay_out};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use telemetry::{Event, Sink};
use train::{
    Ending, Engine, Length, LossScale, Report, RunFolder, Schedule, Start, TrainError, Trainer, TrainerConfig,
};
use units::Bytes;

/// Token ids of the made-up text.
pub const VOCAB_SIZE: usize = 61;
/// Samples of a step, unless a test says otherwise.
pub const GLOBAL_BATCH: usize = 8;

/// A model that trains in no time, with dropout everywhere.
pub fn tiny_gpt2() -> Gpt2Config {
    Gpt2Config {
        vocab_size: VOCAB_SIZE,
        n_positions: 16,
        n_embd: 24,
        n_layer: 2,
        n_head: 2,
        n_inner: None,
        attn_pdrop: 0.1,
        embd_pdrop: 0.1,
        resid_pdrop: 0.1,
        layer_norm_epsilon: 1e-5,
        initializer_range: 0.1,
        bias: true,
    }
}

/// The graph and the plan of a model's training run on the processor.
pub fn plan_training(
    model: &ModelConfig,
    shape: &TrainShape,
    optimizer: &Optimizer,
    levers: &Levers,
    global_batch: usize,
    threads: usize,
) -> (Graph, Plan) {
    let mut graph = build_training(model, optimizer, shape).expect("a sensible model");
    levers.pull(&mut graph).expect("levers that don't exclude each other");
    let plan = Plan {
        micro_batch: shape.micro_batch,
        accumulation: global_batch / shape.micro_batch,
        global_batch,
        seq_len: shape.seq_len,
        target_len: shape.target_len,
        ..lay_out(&graph, &Target { device: DeviceKind::Cpu, threads })
    };
    (graph, plan)
}

/// Text in which every token has something to do with the one before, and a twentieth is held out.
fn text(seed: u64) -> TokenStore {
    let mut token = 0;
    let tokens = (0..4000).map(|i| {
        let noise = philox([i, 0, 0, 0], [seed as u32, 0])[0] % 4;
        token = (token * 5 + noise + 1) % VOCAB_SIZE as u32;
        token
    });
    TokenStore::in_memory(&tokens.collect::<Vec<_>>(), VOCAB_SIZE, Bytes(4000))
}

/// Everything that tells one run from another.
#[derive(Debug, Clone)]
pub struct Setup {
    pub model: ModelConfig,
    pub shape: TrainShape,
    pub optimizer: Optimizer,
    pub levers: Levers,
    pub loss_scale: Option<LossScale>,
    pub global_batch: usize,
    pub threads: usize,
    pub steps: u64,
    pub seed: u64,
    pub text_seed: u64,
    pub eval_every: Option<u64>,
    pub checkpoint_every: Option<u64>,
    pub keep_checkpoints: usize,
}

impl Default for Setup {
    fn default() -> Self {
        let shape = TrainShape {
            micro_batch: 4,
            seq_len: 16,
            accumulates: true,
            head_chunk: 64,
            evaluates: true,
            sample_prefill: Some(8),
            ..TrainShape::default()
        };
        Self {
            model: ModelConfig::Gpt2(tiny_gpt2()),
            shape,
            optimizer: Optimizer::default(),
            levers: Levers { recompute: Recompute::all(Level::Cheap), ..Levers::default() },
            loss_scale: None,
            global_batch: GLOBAL_BATCH,
            threads: 1,
            steps: 12,
            seed: 7,
            text_seed: 1,
            eval_every: Some(4),
            checkpoint_every: None,
            keep_checkpoints: 100,
        }
    }
}

/// Takes events, and may set the flag that stops the run.
pub trait View: FnMut(&Event, &AtomicBool) + Send {}
impl<F: FnMut(&Event, &AtomicBool) + Send> View for F {}

struct ViewSink<'a, V> {
    view: V,
    stop: &'a AtomicBool,
}

impl<V: View> Sink for ViewSink<'_, V> {
    fn take(&mut self, event: &Event) {
        (self.view)(event, self.stop);
    }
}

/// How a run ended, its report, and its newest checkpoint.
pub type Outcome = (Ending, Report, Option<PathBuf>);

impl Setup {
    /// The run's graph and plan.
    pub fn plan(&self) -> (Graph, Plan) {
        plan_training(&self.model, &self.shape, &self.optimizer, &self.levers, self.global_batch, self.threads)
    }

    /// A device with the run's plan, weights still zero.
    pub fn engine(&self) -> Engine {
        let (graph, plan) = self.plan();
        Engine::new(Box::new(CpuDevice::new()), &graph, plan).expect("a sound plan and memory for it")
    }

    /// Runs a session in `folder`.
    pub fn try_run(&self, folder: &Path, start: &Start, view: impl View) -> Result<Outcome, TrainError> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.threads).build().expect("a pool");
        pool.install(|| {
            let stop = AtomicBool::new(false);
            let dataset = Arc::new(self.dataset());
            let trainer = Trainer {
                engine: &mut self.engine(),
                dataset: &dataset,
                folder: &RunFolder::open(folder, *start != Start::Fresh)?,
                config: &self.config(),
                view: &mut ViewSink { view, stop: &stop },
                stop: &stop,
            };
            trainer.run(start)
        })
    }

    /// Runs a session in `folder`, which must not fail.
    pub fn run(&self, folder: &Path, start: &Start, view: impl View) -> Outcome {
        self.try_run(folder, start, view).expect("a session without an error")
    }

    /// The losses of a run from start to end, in a folder that is thrown away.
    pub fn losses(&self) -> Vec<f64> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (ending, report, _) = self.run(&folder.path().join("run"), &Start::Fresh, |_: &_, _: &_| {});
        assert_eq!(ending, Ending::Finished);
        all_losses(&report, self.steps)
    }

    /// The run's data.
    pub fn dataset(&self) -> Dataset {
        let batches = Batches::new(text(self.text_seed), self.shape.seq_len, self.seed);
        Dataset::Windows(batches.expect("text enough"))
    }

    /// What the run's loop is told.
    pub fn config(&self) -> TrainerConfig {
        TrainerConfig {
            name: "test".into(),
            model_name: "tiny".into(),
            model: self.model.clone(),
            length: Length::MaxSteps(self.steps),
            schedule: Schedule { learning_rate: 1e-2, warmup_steps: 3, final_part: 0.1 },
            seed: self.seed,
            eval_every: self.eval_every,
            eval_samples: 5,
            checkpoint_every: self.checkpoint_every,
            keep_checkpoints: self.keep_checkpoints,
            tokenizer: "bytes".into(),
            loss_scale: self.loss_scale,
            precision: self.levers.precision.name().to_owned(),
        }
    }
}

/// The losses of a report that has one for every step.
pub fn all_losses(report: &Report, steps: u64) -> Vec<f64> {
    let losses = report.losses.iter().map(|loss| loss.expect("a loss for every step")).collect::<Vec<_>>();
    assert_eq!(losses.len() as u64, steps);
    losses
}

/// Floats as bits, to be compared exactly.
pub fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Panics unless `found` and `expected` agree to `tolerance` times the scale of what is expected.
pub fn assert_close(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= tolerance, "{what}[{index}]: {f} found, {e} expected, {tolerance} allowed");
    }
}
