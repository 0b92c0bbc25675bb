//! The keys of Llama's config.json, which Mistral and Qwen2 share. `file.rs` reads and writes them.

use crate::GraphError;
use crate::ops::RopeScaling;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Sizes and rates, under the keys of Hugging Face's config.json. Fields from `variant` on are derived from several
/// keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the keys are Hugging Face's and documented there")]
pub struct LlamaConfig {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    pub max_position_embeddings: usize,
    #[serde(default = "default_epsilon")]
    pub rms_norm_eps: f32,
    #[serde(default = "default_theta")]
    pub rope_theta: f32,
    #[serde(default)]
    pub tie_word_embeddings: bool,
    #[serde(default)]
    pub attention_dropout: f32,
    #[serde(default = "default_range")]
    pub initializer_range: f32,
    #[serde(default)]
    pub sliding_window: Option<usize>,
    /// For each layer, whether it attends within the window. Empty: all layers do.
    #[serde(skip)]
    pub sliding_layers: Vec<bool>,
    #[serde(skip)]
    pub variant: Variant,
    #[serde(skip)]
    pub qkv_bias: bool,
    #[serde(skip)]
    pub output_bias: bool,
    #[serde(skip)]
    pub mlp_bias: bool,
    #[serde(skip)]
    pub scaling: RopeScaling,
}

fn default_epsilon() -> f32 {
    1e-6
}
fn default_theta() -> f32 {
    10_000.0
}
pub(super) fn default_range() -> f32 {
    0.02
}

/// The family of a configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Variant {
    /// Llama: biases are set by its keys.
    #[default]
    Llama,
    /// Mistral: no biases, sliding-window attention.
    Mistral,
    /// Qwen2: queries, keys and values have biases.
    Qwen2,
}

/// The differences between a family and the others that share these keys.
pub(super) struct Dialect {
    pub(super) model_type: &'static str,
    /// The class in `transformers`.
    pub(super) class: &'static str,
    /// Reads the family's own keys: the biases and the layers' windows.
    pub(super) read: fn(&Value, &mut Own) -> Result<(), GraphError>,
    /// Writes them.
    pub(super) write: fn(&LlamaConfig, &mut Map<String, Value>),
}

/// Values from a family's own keys.
#[derive(Debug, Default)]
pub(super) struct Own {
    pub(super) qkv_bias: bool,
    pub(super) output_bias: bool,
    pub(super) mlp_bias: bool,
    /// Whether `sliding_window` applies, and to which layers; an empty list means all.
    pub(super) sliding_layers: Option<Vec<bool>>,
}
