//! The flags of the levers, which `train`, `plan` and `bench` share.

use super::options::{AutoOr, auto_or, auto_or_size, part_from_zero, positive_size};
use crate::streams::talk;
use ::plimsoll_plan::{Average, Level, LeverRequest, Precision, Recompute, SequenceTile};
use clap::{Args, ValueEnum};
use plimsoll_graph::ops::{GradientFormat, StateFormat};
use plimsoll_graph::{DeviceKind, MemoryId, WeightCodes};
use plimsoll_units::Bytes;
use serde_json::{Map, Value, json};

/// Settings that make a run fit or run faster. A lever that is `auto` never changes the result.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Levers")]
pub(super) struct LeverArgs {
    /// What the backward pass recomputes instead of keeping it in memory: `none`, `cheap` (norms, activations, dropout),
    /// `attention` (these, and attention with its inputs), `blocks` (all but each block's input), or N (`blocks` in only
    /// N blocks)
    #[arg(long, value_name = "LEVEL", value_parser = |text: &str| auto_or(text, recompute), default_value = "auto")]
    recompute: AutoOr<RecomputeChoice>,
    /// Blocks whose activations are kept in host memory until the backward pass: `off`, `blocks` (all), or a fraction of
    /// the blocks from 0 to 1. `auto` offloads nothing on the CPU, where that frees no memory
    #[arg(long, value_name = "X", value_parser = |text: &str| auto_or(text, sent), default_value = "auto")]
    activation_offload: AutoOr<Sent>,
    /// Fraction of the parameters, from 0 to 1, that the host updates in host memory. `auto` offloads nothing on the CPU,
    /// where that frees no memory
    #[arg(long, value_name = "X", value_parser = |text: &str| auto_or(text, part_from_zero), default_value = "auto")]
    optimizer_offload: AutoOr<f64>,
    /// Fraction of the weights, from 0 to 1 or `off`, that are kept in host memory, where the host updates them, and copied to the
    /// GPU for each pass through their block. `auto` offloads nothing on the CPU, where that frees no memory
    #[arg(long, value_name = "X", value_parser = |text: &str| auto_or(text, weights), default_value = "auto")]
    weight_offload: AutoOr<Weights>,
    /// Host memory that a plan for a GPU may use [default: all free memory]
    #[arg(long, value_name = "SIZE")]
    pub(super) host_ram: Option<Bytes>,
    /// Precision of weights and activations; `bf16-pure` keeps no single-precision copy of the weights, and `fp8` is bf16 with
    /// products of linear layers in 8 bits, on GPUs of compute capability 8.9 or newer. `auto` is bf16 on GPUs of compute capability
    /// 8 or newer, fp16 on those of 7, and otherwise fp32, which `plan` compares with bf16 on the CPU
    #[arg(long, value_name = "PRECISION", value_enum, default_value_t = PrecisionChoice::Auto)]
    precision: PrecisionChoice,
    /// Format of the frozen weights of linear layers; other frozen weights keep the precision
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = BaseChoice::Off)]
    base_weights: BaseChoice,
    /// Format of the optimizer's moments between updates
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = StateChoice::Fp32)]
    optimizer_state: StateChoice,
    /// Format in which gradients are kept between micro-batches and until the update
    #[arg(long, value_name = "PRECISION", value_enum, default_value_t = GradientChoice::Fp32)]
    gradient_precision: GradientChoice,
    /// Update each parameter as soon as its gradient is complete [auto: wherever possible]
    #[arg(long, value_name = "auto|on|off", value_enum, default_value_t = Switch::Auto)]
    update_in_backward: Switch,
    /// Rows of logits that the output head computes at a time
    #[arg(long, value_name = "N", value_parser = auto_or_size, default_value = "auto")]
    head_chunk: AutoOr<usize>,
    /// Tokens that pass through a block's feed-forward layer at a time, which keeps the memory of long samples small: `off`
    /// (all), or a multiple of 128. `auto` uses tiles only if nothing fits without
    #[arg(long, value_name = "N", value_parser = |text: &str| auto_or(text, tile), default_value = "auto")]
    sequence_tile: AutoOr<Tile>,
    /// Rows of attention scores computed at a time, per thread
    #[arg(long, value_name = "N", value_parser = auto_or_size, default_value = "auto")]
    attention_rows: AutoOr<usize>,
    /// Keep an exponential moving average of the weights with this decay per step, such as 0.999
    #[arg(long, value_name = "X", value_parser = decay)]
    ema: Option<f32>,
    /// Memory of the moving average
    #[arg(long, value_name = "MEMORY", value_enum, default_value_t = SpaceChoice::Device)]
    ema_space: SpaceChoice,
}

/// `--recompute`, unless it is `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecomputeChoice {
    Level(Level),
    Blocks(usize),
}

fn recompute(text: &str) -> Result<RecomputeChoice, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "none" => Ok(RecomputeChoice::Level(Level::None)),
        "cheap" => Ok(RecomputeChoice::Level(Level::Cheap)),
        "attention" => Ok(RecomputeChoice::Level(Level::Attention)),
        "block" | "blocks" | "full" => Ok(RecomputeChoice::Level(Level::Block)),
        other => match positive_size(other) {
            Ok(blocks) => Ok(RecomputeChoice::Blocks(blocks)),
            Err(_) => Err("must be auto, none, cheap, attention, blocks, or a number of blocks".to_owned()),
        },
    }
}

impl std::fmt::Display for RecomputeChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Level(level) => f.write_str(level.name()),
            Self::Blocks(blocks) => blocks.fmt(f),
        }
    }
}

/// `--activation-offload`, unless it is `auto`: a fraction of the blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sent(f64);

fn sent(text: &str) -> Result<Sent, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "off" | "none" | "false" => Ok(Sent(0.0)),
        "blocks" | "all" | "true" => Ok(Sent(1.0)),
        other => part_from_zero(other)
            .map(Sent)
            .map_err(|_| "must be auto, off, blocks, or a fraction of the blocks from 0 to 1".to_owned()),
    }
}

impl std::fmt::Display for Sent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0.0 => f.write_str("off"),
            1.0 => f.write_str("blocks"),
            part => part.fmt(f),
        }
    }
}

/// `--weight-offload`, unless it is `auto`: a fraction of the weights.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Weights(f64);

fn weights(text: &str) -> Result<Weights, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "off" | "none" | "false" => Ok(Weights(0.0)),
        "all" | "true" => Ok(Weights(1.0)),
        other => part_from_zero(other)
            .map(Weights)
            .map_err(|_| "must be auto, off, or a fraction of the weights from 0 to 1".to_owned()),
    }
}

impl std::fmt::Display for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0.0 => f.write_str("off"),
            part => part.fmt(f),
        }
    }
}

/// `--sequence-tile`, unless it is `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile(SequenceTile);

/// Tiles begin at addresses that cards' kernels can read vectors from.
const TILE_MULTIPLE: usize = 128;

fn tile(text: &str) -> Result<Tile, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "off" | "none" | "false" => Ok(Tile(SequenceTile::Off)),
        other => match positive_size(other) {
            Ok(rows) if rows.is_multiple_of(TILE_MULTIPLE) => Ok(Tile(SequenceTile::Rows(rows))),
            _ => Err(format!("must be auto, off, or a multiple of {TILE_MULTIPLE} tokens")),
        },
    }
}

impl std::fmt::Display for Tile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            SequenceTile::Off => f.write_str("off"),
            SequenceTile::Rows(rows) => rows.fmt(f),
        }
    }
}

fn decay(text: &str) -> Result<f32, String> {
    match text.trim().parse::<f32>() {
        Ok(decay) if decay > 0.0 && decay < 1.0 => Ok(decay),
        _ => Err(format!("`{text}` must be above 0 and below 1")),
    }
}

/// `--precision`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PrecisionChoice {
    /// The default of the device.
    Auto,
    /// Single precision.
    Fp32,
    /// bfloat16, with the rest of the weights' single-precision bits stored separately.
    Bf16,
    /// IEEE half precision with dynamic loss scaling and a single-precision copy of the weights.
    Fp16,
    /// bfloat16 only, with stochastic rounding.
    Bf16Pure,
    /// As bf16, with matrix products of linear layers in blocks in 8 bits.
    Fp8,
}

/// `--base-weights`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum BaseChoice {
    /// The precision of the run.
    #[value(alias = "false")]
    Off,
    /// 4 bits per weight, in blocks of 64 with quantized scales, as in QLoRA.
    Nf4,
    /// 8 bits per weight, with a scale per row.
    #[value(alias = "8bit")]
    Int8,
}

impl BaseChoice {
    /// The codes to store weights in.
    pub(super) fn codes(self) -> Option<WeightCodes> {
        match self {
            Self::Off => None,
            Self::Nf4 => Some(WeightCodes::Nf4),
            Self::Int8 => Some(WeightCodes::Int8),
        }
    }
}

/// `--optimizer-state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StateChoice {
    /// Single precision.
    Fp32,
    /// bfloat16, with stochastic rounding.
    Bf16,
    /// 8 bits per value, in quantization blocks of 256 with a scale.
    #[value(name = "8bit", alias = "8-bit", alias = "int8")]
    EightBit,
}

/// `--gradient-precision`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum GradientChoice {
    /// Single precision.
    Fp32,
    /// bfloat16, with stochastic rounding.
    Bf16,
}

/// `auto`, `on` or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    /// Wherever possible.
    Auto,
    /// Always; an error if it is not possible.
    #[value(alias = "true")]
    On,
    /// Never.
    #[value(alias = "false")]
    Off,
}

/// `--ema-space`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SpaceChoice {
    /// Device memory.
    Device,
    /// Host memory.
    Host,
}

/// A value as a flag takes it.
fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().expect("no choice is hidden").get_name().to_owned()
}

/// Prints a note if `--activation-offload` or `--weight-offload` copies within one memory.
pub(super) fn note_if_sent_for_nothing(settings: &::plimsoll_plan::Settings, device: DeviceKind) {
    let levers = &settings.levers;
    let sent = [("activation", levers.activation_offload > 0), ("weight", levers.weight_offload > 0.0)];
    for (what, _) in sent.into_iter().filter(|(_, is_sent)| *is_sent && device == DeviceKind::Cpu) {
        talk(format!(
            "note: `--{what}-offload` saves no memory on the CPU, which shares one memory with the host, and costs copies"
        ));
    }
}

impl LeverArgs {
    /// The levers to request. `auto`: what `--precision auto` means on the device.
    pub(super) fn request(&self, auto: Precision) -> LeverRequest {
        LeverRequest {
            precision: self.precision(auto),
            base_weights: self.base_weights.codes(),
            optimizer_state: match self.optimizer_state {
                StateChoice::Fp32 => None,
                StateChoice::Bf16 => Some(StateFormat::Bf16),
                StateChoice::EightBit => Some(StateFormat::Blockwise8),
            },
            gradients: match self.gradient_precision {
                GradientChoice::Fp32 => None,
                GradientChoice::Bf16 => Some(GradientFormat::Bf16),
            },
            average: self.ema.map(|decay| Average {
                decay,
                memory: match self.ema_space {
                    SpaceChoice::Device => MemoryId::DEVICE,
                    SpaceChoice::Host => MemoryId::HOST,
                },
            }),
            sequence_tile: self.sequence_tile.given().map(|Tile(tile)| tile),
            recompute: self.recompute.given().map(|choice| match choice {
                RecomputeChoice::Level(level) => Recompute::all(level),
                RecomputeChoice::Blocks(blocks) => Recompute { blocks, first: Level::Block, rest: Level::Cheap },
            }),
            activation_offload: self.activation_offload.given().map(|Sent(part)| part),
            optimizer_offload: self.optimizer_offload.given(),
            weight_offload: self.weight_offload.given().map(|Weights(part)| part),
            update_in_backward: match self.update_in_backward {
                Switch::Auto => None,
                Switch::On => Some(true),
                Switch::Off => Some(false),
            },
            head_chunk: self.head_chunk.given(),
            attention_rows: self.attention_rows.given(),
        }
    }

    /// Makes `--precision auto` single precision.
    pub(super) fn prefer_single_precision(&mut self) {
        if self.precision == PrecisionChoice::Auto {
            self.precision = PrecisionChoice::Fp32;
        }
    }

    /// `--precision`. `auto`: what it means on the device.
    pub(super) fn precision(&self, auto: Precision) -> Precision {
        match self.precision {
            PrecisionChoice::Auto => auto,
            PrecisionChoice::Fp32 => Precision::Fp32,
            PrecisionChoice::Bf16 => Precision::Bf16,
            PrecisionChoice::Fp16 => Precision::Fp16,
            PrecisionChoice::Bf16Pure => Precision::Bf16Pure,
            PrecisionChoice::Fp8 => Precision::Fp8,
        }
    }

    /// The flags as settings. Those that determine the order of sums have their resolved values, so that a resumed run
    /// computes the same.
    pub(super) fn settings(&self, resolved: &::plimsoll_plan::Settings) -> Map<String, Value> {
        let mut settings = json!({
            "recompute": self.recompute.to_string(),
            "activation_offload": self.activation_offload.to_string(),
            "optimizer_offload": self.optimizer_offload.to_string(),
            "weight_offload": self.weight_offload.to_string(),
            "precision": resolved.levers.precision.name(),
            "base_weights": name(&self.base_weights),
            "optimizer_state": name(&self.optimizer_state),
            "gradient_precision": name(&self.gradient_precision),
            "update_in_backward": name(&self.update_in_backward),
            "head_chunk": resolved.head_chunk,
            "sequence_tile": resolved.levers.sequence_tile.map_or_else(|| json!("off"), |rows| json!(rows)),
            "attention_rows": resolved.levers.attention_rows,
        });
        let map = settings.as_object_mut().expect("an object literal");
        if let Some(decay) = self.ema {
            map.insert("ema".into(), json!(decay.to_string()));
            map.insert("ema_space".into(), json!(name(&self.ema_space)));
        }
        if let Some(host_ram) = self.host_ram {
            map.insert("host_ram".into(), json!(format!("{}b", host_ram.0)));
        }
        map.clone()
    }
}
