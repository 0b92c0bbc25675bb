//! The settings of levers as plain data: those of one configuration, and those that a request fixes.
//! Not here: what levers do (`levers/`), the rest of a request (`request.rs`).

use crate::levers::NodeSet;
use plimsoll_graph::ops::{ATTENTION_ROWS, GradientFormat, StateFormat};
use plimsoll_graph::{DType, MemoryId, WeightCodes};
use serde::{Deserialize, Serialize};

/// A configuration: the micro-batch, and the settings of all levers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Samples that pass through the model at a time.
    pub micro_batch: usize,
    /// Rows of logits at a time.
    pub head_chunk: usize,
    /// The levers that are rewrites.
    pub levers: Levers,
}

/// How the forward pass's results are kept until the backward pass reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Kept {
    pub(crate) recompute: Recompute,
    /// The first blocks in the order of `in_order`, this many: what they do not recompute waits on the host.
    pub(crate) sent_blocks: usize,
}

impl Kept {
    /// On the device, all of it.
    pub(crate) const ALL: Self = Self { recompute: Recompute::all(Level::None), sent_blocks: 0 };
}

/// The setting of every lever but the sizes that `Settings` has. Most are rewrites of the graph; tiles of rows and the format of
/// gradients are parameters of `plimsoll_graph::TrainShape`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Levers {
    /// Rows of scores that attention holds at a time.
    pub attention_rows: usize,
    /// Precision of weights and activations.
    pub precision: Precision,
    /// How frozen weights of linear layers are stored; `None`: as all others.
    #[serde(default)]
    pub base_weights: Option<WeightCodes>,
    /// How moments are kept.
    pub optimizer_state: StateFormat,
    /// How gradients are kept until the update.
    #[serde(default)]
    pub gradients: GradientFormat,
    /// The moving average of the weights, if one is wanted.
    pub average: Option<Average>,
    /// Rows that blocks pass through their feed-forward layers at a time; `None`: all.
    #[serde(default)]
    pub sequence_tile: Option<usize>,
    /// What is recomputed in the backward pass.
    pub recompute: Recompute,
    /// Blocks, counted from the first, whose kept activations wait on the host.
    #[serde(default)]
    pub activation_offload: usize,
    /// Whether parameters are updated in the backward pass.
    pub update_in_backward: bool,
    /// The part of the parameters, from 0 to 1, whose optimizer is on the host.
    pub optimizer_offload: f64,
    /// The part of the weights, from 0 to 1, that rest on the host; their optimizer does too.
    #[serde(default)]
    pub weight_offload: f64,
    /// Whether the host updates at the end of a step, and not while the next one begins. Its gradients then need not outlive a
    /// step of one micro-batch.
    #[serde(default)]
    pub host_update_at_end: bool,
}

/// The parts of the training state, from 0 to 1, that rest on the host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct HostShare {
    /// Of the parameters, those whose optimizer does.
    pub(crate) optimizer: f64,
    /// Of the weights.
    pub(crate) weights: f64,
}

impl HostShare {
    /// Nothing.
    pub(crate) const NONE: Self = Self { optimizer: 0.0, weights: 0.0 };
}

impl Default for Levers {
    /// All are off.
    fn default() -> Self {
        Self {
            attention_rows: ATTENTION_ROWS,
            precision: Precision::Fp32,
            base_weights: None,
            optimizer_state: StateFormat::F32,
            gradients: GradientFormat::F32,
            average: None,
            sequence_tile: None,
            recompute: Recompute::all(Level::None),
            activation_offload: 0,
            update_in_backward: false,
            optimizer_offload: 0.0,
            weight_offload: 0.0,
            host_update_at_end: false,
        }
    }
}

/// The settings of levers that a request fixes. What it leaves open never changes the result, so the search may choose it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LeverRequest {
    /// Precision of weights and activations.
    pub precision: Precision,
    /// How frozen weights of linear layers are stored; `None`: as all others.
    pub base_weights: Option<WeightCodes>,
    /// How moments are kept; `None`: in single precision.
    pub optimizer_state: Option<StateFormat>,
    /// How gradients are kept until the update; `None`: in single precision.
    pub gradients: Option<GradientFormat>,
    /// A moving average of the weights.
    pub average: Option<Average>,
    /// Whether blocks pass tiles of rows through their feed-forward layers; `None`: if nothing fits otherwise.
    pub sequence_tile: Option<SequenceTile>,
    /// What is recomputed in the backward pass; `None`: the search chooses.
    pub recompute: Option<Recompute>,
    /// The part of the blocks, from 0 to 1 and from the first on, whose kept activations wait on the host; `None`: the
    /// search chooses, nothing if device and host share one memory.
    pub activation_offload: Option<f64>,
    /// The part of the parameters whose optimizer is on the host; `None`: the search chooses, nothing if device and host share
    /// one memory.
    pub optimizer_offload: Option<f64>,
    /// The part of the weights that rest on the host; `None`: the search chooses, nothing if device and host share one memory.
    pub weight_offload: Option<f64>,
    /// Whether parameters are updated in the backward pass; `None`: if nothing excludes it.
    pub update_in_backward: Option<bool>,
    /// Rows of logits at a time; `None`: the search chooses.
    pub head_chunk: Option<usize>,
    /// Rows of scores at a time; `None`: the search chooses.
    pub attention_rows: Option<usize>,
}

impl LeverRequest {
    /// All levers; the search has chosen those that are left open.
    pub(crate) fn levers(&self, kept: Kept, share: HostShare, attention_rows: usize) -> Levers {
        Levers {
            attention_rows,
            precision: self.precision,
            base_weights: self.base_weights,
            optimizer_state: self.optimizer_state.unwrap_or(StateFormat::F32),
            gradients: self.gradients.unwrap_or_default(),
            average: self.average,
            sequence_tile: self.sequence_tile.and_then(SequenceTile::rows),
            recompute: kept.recompute,
            activation_offload: kept.sent_blocks,
            update_in_backward: self.update_in_backward.unwrap_or(false),
            optimizer_offload: share.optimizer,
            weight_offload: share.weights,
            host_update_at_end: false,
        }
    }
}

/// Whether blocks pass all rows through their feed-forward layers at a time, or tiles of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequenceTile {
    /// All rows.
    Off,
    /// This many.
    Rows(usize),
}

impl SequenceTile {
    /// Rows of a tile; `None` if there are none.
    pub fn rows(self) -> Option<usize> {
        match self {
            Self::Off => None,
            Self::Rows(rows) => Some(rows),
        }
    }
}

/// Precision of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// Everything in single precision.
    #[default]
    Fp32,
    /// `Bf16`, with a remainder for what weights lack of single precision.
    Bf16,
    /// `F16`, with masters in single precision; the loop scales gradients up.
    Fp16,
    /// `Bf16` alone.
    Bf16Pure,
    /// As `Bf16`, with products of linear layers in 8 bits.
    Fp8,
}

impl Precision {
    /// As flags and files name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
            Self::Bf16Pure => "bf16-pure",
            Self::Fp8 => "fp8",
        }
    }

    /// Precision of weights and activations.
    pub const fn dtype(self) -> DType {
        match self {
            Self::Fp32 => DType::F32,
            Self::Bf16 | Self::Bf16Pure | Self::Fp8 => DType::Bf16,
            Self::Fp16 => DType::F16,
        }
    }

    /// Whether gradients need scaling to be representable.
    pub const fn scales_gradients(self) -> bool {
        matches!(self, Self::Fp16)
    }
}

/// What is recomputed in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Nothing.
    None,
    /// Results of ops that cost memory traffic and no matrix product, where their operands are kept anyway.
    Cheap,
    /// These, and attention with its operands.
    Attention,
    /// Everything but the block's input.
    Block,
    /// Certain nodes' results.
    Chosen(NodeSet),
}

impl Level {
    /// As flags and files name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Cheap => "cheap",
            Self::Attention => "attention",
            Self::Block => "blocks",
            Self::Chosen(_) => "chosen",
        }
    }
}

/// The level of each block: one for the first `blocks`, another for the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Recompute {
    /// Blocks, counted from the first, that are at the level `first`.
    pub blocks: usize,
    /// Their level.
    pub first: Level,
    /// The level of all others.
    pub rest: Level,
}

impl Recompute {
    /// The same level everywhere.
    pub const fn all(level: Level) -> Self {
        Self { blocks: 0, first: level, rest: level }
    }

    /// The level of a node in this block, or outside of all blocks.
    pub(crate) fn level(self, block: Option<u32>) -> Level {
        match block {
            Some(block) if (block as usize) < self.blocks => self.first,
            Some(_) => self.rest,
            None if matches!((self.first, self.rest), (Level::Chosen(_), _) | (_, Level::Chosen(_))) => self.rest,
            // Outside the blocks there is no block's input to go back to.
            None => self.first.max(self.rest).min(Level::Cheap),
        }
    }
}

/// A moving average that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Average {
    /// What is left of it after an update, in (0, 1).
    pub decay: f32,
    /// The memory that it is kept in.
    #[serde(rename = "place")]
    pub memory: MemoryId,
}

/// Why a lever can't be pulled together with the rest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize)]
#[error("{lever} can't be used: {reason}")]
pub struct Excluded {
    /// The lever.
    pub lever: &'static str,
    /// In words.
    pub reason: &'static str,
}
