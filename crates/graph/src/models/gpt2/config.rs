//! The keys of GPT-2's config.json, and the published sizes.

use crate::GraphError;
use crate::models::Family;
use crate::models::keys::{
    self, GELU_TANH, bad, check_extents, check_layers, check_positive, check_rates, parse, refuse_others,
    require_whole, resolve_aliases,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Sizes and rates, under the keys of Hugging Face's config.json. `bias` is an addition: nanoGPT's models have no
/// biases.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the keys are Hugging Face's and documented there")]
pub struct Gpt2Config {
    pub vocab_size: usize,
    pub n_positions: usize,
    pub n_embd: usize,
    pub n_layer: usize,
    pub n_head: usize,
    #[serde(default)]
    pub n_inner: Option<usize>,
    #[serde(default = "default_dropout")]
    pub attn_pdrop: f32,
    #[serde(default = "default_dropout")]
    pub embd_pdrop: f32,
    #[serde(default = "default_dropout")]
    pub resid_pdrop: f32,
    #[serde(default = "default_epsilon")]
    pub layer_norm_epsilon: f32,
    #[serde(default = "default_range")]
    pub initializer_range: f32,
    #[serde(default = "default_bias")]
    pub bias: bool,
}

fn default_dropout() -> f32 {
    0.1
}
fn default_epsilon() -> f32 {
    1e-5
}
fn default_range() -> f32 {
    0.02
}
fn default_bias() -> bool {
    true
}

/// A named model size.
struct Preset {
    name: &'static str,
    layers: usize,
    width: usize,
    heads: usize,
    positions: usize,
    vocab_size: usize,
}

/// The published sizes, and `nano` for a first run on any machine.
const PRESETS: &[Preset] = &[
    Preset { name: "nano", layers: 4, width: 128, heads: 4, positions: 64, vocab_size: 256 },
    Preset { name: "gpt2", layers: 12, width: 768, heads: 12, positions: 1024, vocab_size: 50257 },
    Preset { name: "gpt2-medium", layers: 24, width: 1024, heads: 16, positions: 1024, vocab_size: 50257 },
    Preset { name: "gpt2-large", layers: 36, width: 1280, heads: 20, positions: 1024, vocab_size: 50257 },
    Preset { name: "gpt2-xl", layers: 48, width: 1600, heads: 25, positions: 1024, vocab_size: 50257 },
];

impl Preset {
    fn config(&self) -> Gpt2Config {
        Gpt2Config {
            vocab_size: self.vocab_size,
            n_positions: self.positions,
            n_embd: self.width,
            n_layer: self.layers,
            n_head: self.heads,
            n_inner: None,
            attn_pdrop: 0.0,
            embd_pdrop: 0.0,
            resid_pdrop: 0.0,
            layer_norm_epsilon: default_epsilon(),
            initializer_range: default_range(),
            bias: true,
        }
    }
}

impl Family for Gpt2Config {
    fn preset_names() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|p| p.name)
    }

    fn preset(name: &str) -> Option<Self> {
        PRESETS.iter().find(|p| p.name == name).map(Preset::config)
    }

    fn from_value(mut value: Value) -> Result<Self, GraphError> {
        resolve_aliases(
            &mut value,
            &[
                ("hidden_size", "n_embd"),
                ("max_position_embeddings", "n_positions"),
                ("num_attention_heads", "n_head"),
                ("num_hidden_layers", "n_layer"),
            ],
        )?;
        refuse_others(
            &value,
            &[
                ("activation_function", &GELU_TANH.map(Value::from)),
                ("scale_attn_weights", &[json!(true)]),
                ("scale_attn_by_inverse_layer_idx", &[json!(false)]),
                ("add_cross_attention", &[json!(false)]),
                ("tie_word_embeddings", &[json!(true)]),
            ],
        )?;
        require_whole(&value, &["vocab_size", "n_positions", "n_embd", "n_layer", "n_head"])?;
        let positions = value["n_positions"].as_u64();
        if let Some(context) = value.get("n_ctx").and_then(Value::as_u64).filter(|n| Some(*n) != positions) {
            return Err(bad(
                "n_ctx",
                format!("is {context}, which contradicts n_positions = {}", value["n_positions"]),
            ));
        }
        let config: Self = parse(value)?;
        config.validate()?;
        Ok(config)
    }

    fn to_json(&self) -> String {
        let more = json!({
            "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new",
            "tie_word_embeddings": true, "n_ctx": self.n_positions, "torch_dtype": "float32",
        });
        keys::to_json(self, &more)
    }

    fn validate(&self) -> Result<(), GraphError> {
        check_extents(&[
            ("vocab_size", self.vocab_size),
            ("n_positions", self.n_positions),
            ("n_embd", self.n_embd),
            ("n_head", self.n_head),
            ("n_inner", self.inner()),
        ])?;
        check_layers("n_layer", self.n_layer)?;
        if !self.n_embd.is_multiple_of(self.n_head) {
            return Err(bad("n_head", format!("is {}, which does not divide n_embd = {}", self.n_head, self.n_embd)));
        }
        check_rates(&[
            ("attn_pdrop", self.attn_pdrop),
            ("embd_pdrop", self.embd_pdrop),
            ("resid_pdrop", self.resid_pdrop),
        ])?;
        check_positive(&[
            ("layer_norm_epsilon", self.layer_norm_epsilon),
            ("initializer_range", self.initializer_range),
        ])
    }

    fn model_type(&self) -> &'static str {
        "gpt2"
    }

    fn set_max_positions(&mut self, positions: usize) {
        self.n_positions = positions;
    }

    fn set_vocab_size(&mut self, vocab_size: usize) {
        self.vocab_size = vocab_size;
    }

    fn set_dropout(&mut self, rate: f32) {
        (self.attn_pdrop, self.embd_pdrop, self.resid_pdrop) = (rate, rate, rate);
    }
}
