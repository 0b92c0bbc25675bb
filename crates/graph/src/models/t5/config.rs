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
    /// Whether it is an mT5, which has T5's architecture under another `model_type`.
    #[serde(skip)]
    pub is_multilingual: bool,
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
    /// That of UL2.
    #[serde(rename = "gated-silu")]
    GatedSilu,
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
    /// Of the encoder and of the decoder.
    layers: [usize; 2],
    heads: usize,
    kind: Kind,
}

/// What the sizes of a preset do not tell.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// With ReLU and a tied head.
    V1_0,
    /// With gated GELU and an untied head.
    V1_1,
    /// As `V1_1`, with a vocabulary of 101 languages.
    Multilingual,
    /// As `V1_1`, with bytes as tokens.
    Bytes,
}

/// The published sizes, and `t5-nano` for first runs. Sources: Raffel et al. 2020, section 3.7; Chung et al. 2022; Xue et al. 2021
/// (mT5) and 2022 (ByT5).
#[rustfmt::skip]
const PRESETS: &[Preset] = &[
    Preset { name: "t5-nano", width: 192, head_size: 32, inner: 384, layers: [3, 3], heads: 6, kind: Kind::V1_1 },
    Preset { name: "t5-small", width: 512, head_size: 64, inner: 2048, layers: [6, 6], heads: 8, kind: Kind::V1_0 },
    Preset { name: "t5-base", width: 768, head_size: 64, inner: 3072, layers: [12, 12], heads: 12, kind: Kind::V1_0 },
    Preset { name: "t5-large", width: 1024, head_size: 64, inner: 4096, layers: [24, 24], heads: 16, kind: Kind::V1_0 },
    Preset { name: "t5-xl", width: 1024, head_size: 128, inner: 16_384, layers: [24, 24], heads: 32, kind: Kind::V1_0 },
    Preset { name: "flan-t5-small", width: 512, head_size: 64, inner: 1024, layers: [8, 8], heads: 6, kind: Kind::V1_1 },
    Preset { name: "flan-t5-base", width: 768, head_size: 64, inner: 2048, layers: [12, 12], heads: 12, kind: Kind::V1_1 },
    Preset { name: "flan-t5-large", width: 1024, head_size: 64, inner: 2816, layers: [24, 24], heads: 16, kind: Kind::V1_1 },
    Preset { name: "flan-t5-xl", width: 2048, head_size: 64, inner: 5120, layers: [24, 24], heads: 32, kind: Kind::V1_1 },
    Preset { name: "flan-t5-xxl", width: 4096, head_size: 64, inner: 10_240, layers: [24, 24], heads: 64, kind: Kind::V1_1 },
    Preset { name: "mt5-small", width: 512, head_size: 64, inner: 1024, layers: [8, 8], heads: 6, kind: Kind::Multilingual },
    Preset { name: "mt5-base", width: 768, head_size: 64, inner: 2048, layers: [12, 12], heads: 12, kind: Kind::Multilingual },
    Preset { name: "mt5-large", width: 1024, head_size: 64, inner: 2816, layers: [24, 24], heads: 16, kind: Kind::Multilingual },
    Preset { name: "mt5-xl", width: 2048, head_size: 64, inner: 5120, layers: [24, 24], heads: 32, kind: Kind::Multilingual },
    Preset { name: "byt5-small", width: 1472, head_size: 64, inner: 3584, layers: [12, 4], heads: 6, kind: Kind::Bytes },
    Preset { name: "byt5-base", width: 1536, head_size: 64, inner: 3968, layers: [18, 6], heads: 12, kind: Kind::Bytes },
    Preset { name: "byt5-large", width: 1536, head_size: 64, inner: 3840, layers: [36, 12], heads: 16, kind: Kind::Bytes },
];

/// Other names of presets.
const ALIASES: [(&str, &str); 1] = [("t5-3b", "t5-xl")];

impl Preset {
    fn config(&self) -> T5Config {
        let is_first = self.kind == Kind::V1_0;
        T5Config {
            is_multilingual: self.kind == Kind::Multilingual,
            vocab_size: match self.kind {
                Kind::V1_0 | Kind::V1_1 => 32_128,
                Kind::Multilingual => 250_112,
                Kind::Bytes => 384,
            },
            d_model: self.width,
            d_kv: self.head_size,
            d_ff: self.inner,
            num_layers: self.layers[0],
            num_decoder_layers: self.layers[1],
            num_heads: self.heads,
            relative_attention_num_buckets: default_buckets(),
            relative_attention_max_distance: default_distance(),
            dropout_rate: 0.0,
            layer_norm_epsilon: default_epsilon(),
            initializer_factor: default_factor(),
            feed_forward_proj: if is_first { FeedForwardProjection::Relu } else { FeedForwardProjection::GatedGelu },
            tie_word_embeddings: is_first,
            scale_decoder_outputs: is_first,
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
        let is_multilingual = value["model_type"] == "mt5";
        if let Some(map) = value.as_object_mut().filter(|_| is_multilingual) {
            map.entry("feed_forward_proj").or_insert(json!("gated-gelu"));
            // Decoder outputs are never scaled, and a tied head is a matter of the weights.
            map.insert("scale_decoder_outputs".into(), json!(false));
        }
        let gated_gelu = GELU_TANH.map(|name| json!(format!("gated-{name}")));
        let built = [&["relu", "gated-gelu", "gated-silu"].map(Value::from), &gated_gelu[..]].concat();
        let gated = value.get("feed_forward_proj").is_some_and(|kind| *kind != "relu" && built.contains(kind));
        let activations = match value.get("feed_forward_proj").and_then(Value::as_str) {
            Some("gated-silu") => vec![json!("silu")],
            _ if gated => GELU_TANH.map(Value::from).to_vec(),
            _ => vec![json!("relu")],
        };
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
            let kind = value.get("feed_forward_proj").and_then(Value::as_str).unwrap_or("relu");
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
        let config = Self { is_multilingual, ..parse(value)? };
        config.validate()?;
        Ok(config)
    }

    fn to_json(&self) -> String {
        let (gated, activation) = match self.feed_forward_proj {
            FeedForwardProjection::Relu => (false, "relu"),
            FeedForwardProjection::GatedGelu => (true, "gelu_new"),
            FeedForwardProjection::GatedSilu => (true, "silu"),
        };
        let class = if self.is_multilingual { "MT5ForConditionalGeneration" } else { "T5ForConditionalGeneration" };
        let more = json!({
            "model_type": self.model_type(), "architectures": [class], "torch_dtype": "float32",
            "is_encoder_decoder": true, "is_gated_act": gated, "dense_act_fn": activation, "n_positions": 512,
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
        if self.is_multilingual { "mt5" } else { "t5" }
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
