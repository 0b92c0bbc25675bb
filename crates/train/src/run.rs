//! What a run consists of. Not here: its loop (`trainer.rs`).

use crate::checkpoint::ModelFolder;
use crate::{Engine, Length, LossScale, Pace, RunFolder, Schedule};
use plimsoll_data::Dataset;
use plimsoll_graph::models::ModelConfig;
use plimsoll_telemetry::Sink;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The settings of a run in addition to its plan.
#[derive(Debug, Clone)]
pub struct TrainerConfig {
    /// Name of the run.
    pub name: String,
    /// The model's name or path, for display.
    pub model_name: String,
    /// The model.
    pub model: ModelConfig,
    /// The files that make its checkpoints model folders.
    pub model_folder: ModelFolder,
    /// The weights below its adapters, if only adapters are trained.
    pub base: Option<Base>,
    /// The length of the run.
    pub length: Length,
    /// The learning-rate schedule.
    pub schedule: Schedule,
    /// Seed of weights, data order and dropout.
    pub seed: u64,
    /// Steps between evaluations; `None` means only at the end.
    pub eval_every: Option<u64>,
    /// Maximum number of held-out samples per evaluation.
    pub eval_samples: u64,
    /// Steps between checkpoints; `None` means only at the end.
    pub checkpoint_every: Option<u64>,
    /// Largest part of the time that regular checkpoints may take, such as 0.02: one that is due too soon after the last is
    /// skipped. `None` skips none.
    pub checkpoint_time_part: Option<f64>,
    /// Number of checkpoints to keep.
    pub keep_checkpoints: usize,
    /// The tokenizer, for writing text later.
    pub tokenizer: String,
    /// Precision of weights and activations, as in the flag's value.
    pub precision: String,
    /// Initial loss scale, if gradients are in half precision.
    pub loss_scale: Option<LossScale>,
    /// Settings that were made safe and why, for the report.
    pub safe_settings: Option<String>,
}

/// The frozen weights below the adapters of a run. Checkpoints do not contain them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// A folder with `model.safetensors`; `None` for weights initialized from the seed.
    pub weights: Option<PathBuf>,
    /// A folder with the adapters to start from; `None` for new ones.
    pub adapters: Option<PathBuf>,
}

/// The source of the initial weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// Initialized from the seed.
    Fresh,
    /// A folder with `model.safetensors`. With adapters, those of [`Base`] are loaded instead.
    Weights(PathBuf),
    /// A checkpoint of this run.
    Resume(PathBuf),
}

/// A run.
pub struct Trainer<'a> {
    /// The engine: the device with the plan.
    pub engine: &'a mut Engine,
    /// The data.
    pub dataset: &'a Arc<Dataset>,
    /// The run's folder.
    pub folder: &'a RunFolder,
    /// All other settings.
    pub config: &'a TrainerConfig,
    /// Receivers of every event, in addition to the journal.
    pub sinks: Vec<&'a mut dyn Sink>,
    /// Set by the caller to stop the run after the current step.
    pub stop: &'a AtomicBool,
    /// Called between micro-batches to control the speed.
    pub pace: &'a dyn Pace,
}
