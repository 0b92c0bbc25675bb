//! The keys of Llama's config.json, which Mistral and Qwen2 share.

use super::{mistral, presets, qwen2, rope};
use crate::GraphError;
use crate::models::Family;
use crate::models::keys::{
    self, bad, check_extents, check_layers, check_positive, check_rates, parse, refuse_others, require_whole,
};
use crate::ops::RopeScaling;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Sizes and rates, under the keys of Hugging Face's config.json. Fields from `variant` on are derived from several keys.
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
    /// Whether each layer attends within the window. Empty: all layers do.
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
    /// Llama: biases if its keys ask for them.
    #[default]
    Llama,
    /// Mistral: no biases, attention in a window.
    Mistral,
    /// Qwen2: queries, keys and values have biases.
    Qwen2,
}

/// What sets a family apart from the others that share these keys.
pub(super) struct Dialect {
    pub(super) model_type: &'static str,
    /// The class of `transformers`.
    pub(super) class: &'static str,
    /// Reads the family's own keys: the biases and the window that layers have.
    pub(super) read: fn(&Value, &mut Own) -> Result<(), GraphError>,
    /// Writes them.
    pub(super) write: fn(&LlamaConfig, &mut Map<String, Value>),
}

/// What a family's own keys say.
#[derive(Debug, Default)]
pub(super) struct Own {
    pub(super) qkv_bias: bool,
    pub(super) output_bias: bool,
    pub(super) mlp_bias: bool,
    /// Whether `sliding_window` counts, and for which layers; empty: for all.
    pub(super) sliding_layers: Option<Vec<bool>>,
}

/// The window that `transformers` takes if layers have one and the file has no `sliding_window`.
const DEFAULT_WINDOW: usize = 4096;

impl Variant {
    const ALL: [Self; 3] = [Self::Llama, Self::Mistral, Self::Qwen2];

    pub(super) fn dialect(self) -> &'static Dialect {
        match self {
            Self::Llama => &super::DIALECT,
            Self::Mistral => &mistral::DIALECT,
            Self::Qwen2 => &qwen2::DIALECT,
        }
    }
}

impl Family for LlamaConfig {
    fn preset_names() -> impl Iterator<Item = &'static str> {
        presets::names()
    }

    fn preset(name: &str) -> Option<Self> {
        presets::find(name)
    }

    fn from_value(mut value: Value) -> Result<Self, GraphError> {
        refuse_others(
            &value,
            &[
                ("hidden_act", &[json!("silu"), json!("swish")]),
                ("pretraining_tp", &[json!(1)]),
                ("partial_rotary_factor", &[json!(1.0)]),
                ("quantization_config", &[]),
            ],
        )?;
        let needed = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"];
        require_whole(&value, &[&needed[..], &["max_position_embeddings"]].concat())?;
        let model_type = value["model_type"].as_str().unwrap_or_default();
        let variant = Variant::ALL.into_iter().find(|variant| variant.dialect().model_type == model_type);
        let variant = variant.ok_or_else(|| bad("model_type", format!("is `{model_type}`")))?;
        let mut own = Own::default();
        (variant.dialect().read)(&value, &mut own)?;
        let (theta, scaling) = rope::read(&value)?;
        let heads = value["num_attention_heads"].as_u64().unwrap_or(1).max(1);
        let map = value.as_object_mut().ok_or_else(|| bad("(file)", "is not an object"))?;
        // `null` sets no window.
        if own.sliding_layers.is_some() {
            map.entry("sliding_window").or_insert(json!(DEFAULT_WINDOW));
        } else {
            map.remove("sliding_window");
        }
        map.extend(theta.map(|theta| ("rope_theta".into(), json!(theta))));
        map.retain(|_, value| !value.is_null());
        map.entry("num_key_value_heads").or_insert(json!(heads));
        if !map.contains_key("head_dim") {
            let width = map["hidden_size"].as_u64().unwrap_or(0);
            if !width.is_multiple_of(heads) {
                let problem =
                    format!("is {heads}, which does not divide hidden_size = {width}, and there is no head_dim");
                return Err(bad("num_attention_heads", problem));
            }
            map.insert("head_dim".into(), json!(width / heads));
        }
        let config: Self = parse(value)?;
        let Own { qkv_bias, output_bias, mlp_bias, sliding_layers } = own;
        let sliding_layers = sliding_layers.unwrap_or_default();
        let config = Self { variant, qkv_bias, output_bias, mlp_bias, sliding_layers, scaling, ..config };
        config.validate()?;
        Ok(config)
    }

    fn to_json(&self) -> String {
        let Dialect { model_type, class, write, .. } = self.variant.dialect();
        let mut more = json!({
            "model_type": model_type, "architectures": [class], "hidden_act": "silu", "torch_dtype": "float32",
            "rope_scaling": rope::write(self.scaling), "attention_bias": self.output_bias, "mlp_bias": self.mlp_bias,
            "use_sliding_window": false,
        });
        write(self, more.as_object_mut().expect("an object literal"));
        keys::to_json(self, &more)
    }

    fn validate(&self) -> Result<(), GraphError> {
        check_layers("num_hidden_layers", self.num_hidden_layers)?;
        check_extents(&[
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("max_position_embeddings", self.max_position_embeddings),
            ("sliding_window", self.sliding_window.unwrap_or(1)),
        ])?;
        check_extents(&[("head_dim", self.num_attention_heads * self.head_dim)])?;
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            let (heads, kv_heads) = (self.num_attention_heads, self.num_key_value_heads);
            let problem = format!("is {kv_heads}, which does not divide num_attention_heads = {heads}");
            return Err(bad("num_key_value_heads", problem));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(bad("head_dim", format!("is {}; rotary positions need an even number", self.head_dim)));
        }
        check_rates(&[("attention_dropout", self.attention_dropout)])?;
        check_positive(&[
            ("rms_norm_eps", self.rms_norm_eps),
            ("rope_theta", self.rope_theta),
            ("initializer_range", self.initializer_range),
        ])
    }

    fn model_type(&self) -> &'static str {
        self.variant.dialect().model_type
    }

    fn set_max_positions(&mut self, positions: usize) {
        self.max_position_embeddings = positions;
    }

    fn set_vocab_size(&mut self, vocab_size: usize) {
        self.vocab_size = vocab_size;
    }

    fn set_dropout(&mut self, rate: f32) {
        self.attention_dropout = rate;
    }
}
