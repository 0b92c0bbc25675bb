//! The keys of T5's config.json, and the published sizes.

use crate::GraphError;
use crate::models::Family;
use crate::models::keys::{
    self, GELU_TANH, bad, check_extents, check_layers, check_positive, check_rates, parse, refuse_others,
    require_whole, resolve_aliases,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Sizes and rates, under the keys of Hugging Face's config.json.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the keys are Hugging Face's and documented there")]
pub struct T5Config {
    pub vocab_size: usize,
    pub d_model: usize,
    pub d_kv: usize,
    pub d_ff: usize,
    pub num_layers: usize,
    pub num_decoder_layers: usize,
    pub num_heads: usize,
    #[serde(default = "default_buckets")]
    pub relative_attention_num_buckets: usize,
    #[serde(default = "default_distance")]
    pub relative_attention_max_distance: usize,
    #[serde(default = "default_dropout")]
    pub dropout_rate: f32,
    #[serde(default = "default_epsilon")]
    pub layer_norm_epsilon: f32,
    #[serde(default = "default_factor")]
    pub initializer_factor: f32,
    #[serde(default)]
    pub feed_forward_proj: FeedForwardProjection,
    #[serde(default = "default_tied")]
    pub tie_word_embeddings: bool,
    /// Whether the head's input is multiplied by `d_model` to the power of -1/2.
    pub scale_decoder_outputs: bool,
    #[serde(default)]
    pub pad_token_id: u32,
    #[serde(default = "default_end")]
    pub eos_token_id: u32,
    #[serde(default)]
    pub decoder_start_token_id: u32,
}

/// The activation in the middle of a feed-forward layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FeedForwardProjection {
    /// That of v1.0.
    #[default]
    #[serde(rename = "relu")]
    Relu,
    /// That of v1.1, in its tanh form.
    #[serde(
        rename = "gated-gelu",
        alias = "gated-gelu_new",
        alias = "gated-gelu_pytorch_tanh",
        alias = "gated-gelu_fast",
        alias = "gated-gelu_python_tanh",
        alias = "gated-gelu_accurate"
    )]
    GatedGelu,
}

fn default_buckets() -> usize {
    32
}
fn default_distance() -> usize {
    128
}
fn default_dropout() -> f32 {
    0.1
}
fn default_epsilon() -> f32 {
    1e-6
}
fn default_factor() -> f32 {
    1.0
}
fn default_tied() -> bool {
    true
}
fn default_end() -> u32 {
    1
}

/// A named model size.
struct Preset {
    name: &'static str,
    width: usize,
    head_size: usize,
    inner: usize,
    layers: usize,
    heads: usize,
    /// Whether it has gated GELU and an untied head, as v1.1 does.
    newer: bool,
}

/// The published sizes, and `t5-nano` for first runs. Source: Raffel et al. 2020, section 3.7; Chung et al. 2022.
#[rustfmt::skip]
const PRESETS: &[Preset] = &[
    Preset { name: "t5-nano", width: 192, head_size: 32, inner: 384, layers: 3, heads: 6, newer: true },
    Preset { name: "t5-small", width: 512, head_size: 64, inner: 2048, layers: 6, heads: 8, newer: false },
    Preset { name: "t5-base", width: 768, head_size: 64, inner: 3072, layers: 12, heads: 12, newer: false },
    Preset { name: "t5-large", width: 1024, head_size: 64, inner: 4096, layers: 24, heads: 16, newer: false },
    Preset { name: "t5-xl", width: 1024, head_size: 128, inner: 16_384, layers: 24, heads: 32, newer: false },
    Preset { name: "flan-t5-small", width: 512, head_size: 64, inner: 1024, layers: 8, heads: 6, newer: true },
    Preset { name: "flan-t5-base", width: 768, head_size: 64, inner: 2048, layers: 12, heads: 12, newer: true },
    Preset { name: "flan-t5-large", width: 1024, head_size: 64, inner: 2816, layers: 24, heads: 16, newer: true },
    Preset { name: "flan-t5-xl", width: 2048, head_size: 64, inner: 5120, layers: 24, heads: 32, newer: true },
    Preset { name: "flan-t5-xxl", width: 4096, head_size: 64, inner: 10_240, layers: 24, heads: 64, newer: true },
];

/// Other names of presets.
const ALIASES: [(&str, &str); 1] = [("t5-3b", "t5-xl")];

impl Preset {
    fn config(&self) -> T5Config {
        T5Config {
            vocab_size: 32_128,
            d_model: self.width,
            d_kv: self.head_size,
            d_ff: self.inner,
            num_layers: self.layers,
            num_decoder_layers: self.layers,
            num_heads: self.heads,
            relative_attention_num_buckets: default_buckets(),
            relative_attention_max_distance: default_distance(),
            dropout_rate: 0.0,
            layer_norm_epsilon: default_epsilon(),
            initializer_factor: default_factor(),
            feed_forward_proj: if self.newer { FeedForwardProjection::GatedGelu } else { FeedForwardProjection::Relu },
            tie_word_embeddings: !self.newer,
            scale_decoder_outputs: !self.newer,
            pad_token_id: 0,
            eos_token_id: default_end(),
            decoder_start_token_id: 0,
        }
    }
}

impl Family for T5Config {
    fn preset_names() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|p| p.name)
    }

    fn preset(name: &str) -> Option<Self> {
        let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name);
        PRESETS.iter().find(|p| p.name == name).map(Preset::config)
    }

    fn from_value(mut value: Value) -> Result<Self, GraphError> {
        resolve_aliases(
            &mut value,
            &[
                ("hidden_size", "d_model"),
                ("num_attention_heads", "num_heads"),
                ("num_hidden_layers", "num_layers"),
                ("head_dim", "d_kv"),
            ],
        )?;
        let gated_gelu = GELU_TANH.map(|name| json!(format!("gated-{name}")));
        let built = [&[json!("relu"), json!("gated-gelu")], &gated_gelu[..]].concat();
        let gated = value.get("feed_forward_proj").is_some_and(|kind| *kind != "relu" && built.contains(kind));
        let activations = if gated { GELU_TANH.map(Value::from).to_vec() } else { vec![json!("relu")] };
        refuse_others(
            &value,
            &[
                ("feed_forward_proj", &built),
                ("dense_act_fn", &activations),
                ("is_encoder_decoder", &[json!(true)]),
                ("is_decoder", &[json!(false)]),
            ],
        )?;
        require_whole(&value, &["vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads"])?;
        if let Some(said) = value.get("is_gated_act").and_then(Value::as_bool).filter(|said| *said != gated) {
            let kind = if gated { "gated-gelu" } else { "relu" };
            return Err(bad("is_gated_act", format!("is {said}, which contradicts feed_forward_proj, `{kind}`")));
        }
        let map = value.as_object_mut().ok_or_else(|| bad("(file)", "is not an object"))?;
        map.retain(|_, value| !value.is_null());
        if !map.contains_key("scale_decoder_outputs") {
            let tied = map.get("tie_word_embeddings").cloned().unwrap_or(json!(default_tied()));
            map.insert("scale_decoder_outputs".into(), tied);
        }
        if !map.contains_key("num_decoder_layers") {
            map.insert("num_decoder_layers".into(), map["num_layers"].clone());
        }
        let config: Self = parse(value)?;
        config.validate()?;
        Ok(config)
    }

    fn to_json(&self) -> String {
        let gated = self.feed_forward_proj == FeedForwardProjection::GatedGelu;
        let more = json!({
            "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "torch_dtype": "float32",
            "is_encoder_decoder": true, "is_gated_act": gated,
            "dense_act_fn": if gated { "gelu_new" } else { "relu" }, "n_positions": 512,
        });
        keys::to_json(self, &more)
    }

    fn validate(&self) -> Result<(), GraphError> {
        check_layers("num_layers", self.num_layers)?;
        check_layers("num_decoder_layers", self.num_decoder_layers)?;
        check_extents(&[
            ("vocab_size", self.vocab_size),
            ("d_model", self.d_model),
            ("d_kv", self.d_kv),
            ("d_ff", self.d_ff),
            ("num_heads", self.num_heads),
            ("relative_attention_num_buckets", self.relative_attention_num_buckets),
            ("relative_attention_max_distance", self.relative_attention_max_distance),
        ])?;
        check_extents(&[("d_kv", self.num_heads * self.d_kv)])?;
        let (buckets, distance) = (self.relative_attention_num_buckets, self.relative_attention_max_distance);
        if buckets < 4 || !buckets.is_multiple_of(4) {
            return Err(bad("relative_attention_num_buckets", format!("is {buckets}; it must be a multiple of 4")));
        }
        if distance <= buckets / 2 {
            let problem = format!("is {distance}; it must be more than half of the {buckets} buckets");
            return Err(bad("relative_attention_max_distance", problem));
        }
        for (key, id) in [
            ("pad_token_id", self.pad_token_id),
            ("eos_token_id", self.eos_token_id),
            ("decoder_start_token_id", self.decoder_start_token_id),
        ] {
            if id as usize >= self.vocab_size {
                return Err(bad(key, format!("is {id}, outside the vocabulary of {}", self.vocab_size)));
            }
        }
        check_rates(&[("dropout_rate", self.dropout_rate)])?;
        check_positive(&[
            ("layer_norm_epsilon", self.layer_norm_epsilon),
            ("initializer_factor", self.initializer_factor),
        ])
    }

    fn model_type(&self) -> &'static str {
        "t5"
    }

    /// Relative positions have no limit.
    fn set_max_positions(&mut self, _positions: usize) {}

    fn set_vocab_size(&mut self, vocab_size: usize) {
        self.vocab_size = vocab_size;
    }

    fn set_dropout(&mut self, rate: f32) {
        self.dropout_rate = rate;
    }

    fn set_special_tokens(&mut self, pad: u32, end: u32) {
        (self.pad_token_id, self.decoder_start_token_id, self.eos_token_id) = (pad, pad, end);
    }

    fn decoder_start(&self) -> Option<u32> {
        Some(self.decoder_start_token_id)
    }

    fn leaves_head_to_weights(&self) -> bool {
        self.tie_word_embeddings && !self.scale_decoder_outputs
    }

    fn untie_head(&mut self) {
        self.tie_word_embeddings = false;
    }
}
