//! Llama and what is built like it (Mistral, Qwen2): RMSNorm, rotary positions, gated feed-forward, grouped heads.
//! Source: Touvron et al. 2023, Jiang et al. 2023, Yang et al. 2024; names and layouts of parameters are those of
//! Hugging Face's `LlamaForCausalLM`.

use super::keys::{
    LARGEST_EXTENT, bad, check_extents, check_layers, check_positive, check_rates, parse, refuse_others, require_whole,
};
use super::parts::{Dropouts, Projection};
use super::{CacheShapes, Caches, Family, Inputs, Mode};
use crate::ops::{
    ATTENTION_ROWS, Activation, Add, Attention, CachedAttention, Embedding, Gated, RmsNorm, RopeScaling, Rotary,
};
use crate::{Graph, GraphError, Init, ProgramBuilder, TensorId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Sizes and rates, under the keys of Hugging Face's config.json. Those from `variant` on are resolved from several.
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

/// Which of the family's names a configuration goes by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// Llama, with biases where its keys ask for them.
    #[default]
    Llama,
    /// Mistral: without biases, attention in a window.
    Mistral,
    /// Qwen2: queries, keys and values have biases.
    Qwen2,
}

impl Variant {
    /// Each with its `model_type` and its class.
    const NAMES: [(Self, &'static str, &'static str); 3] = [
        (Self::Llama, "llama", "LlamaForCausalLM"),
        (Self::Mistral, "mistral", "MistralForCausalLM"),
        (Self::Qwen2, "qwen2", "Qwen2ForCausalLM"),
    ];

    fn names(self) -> (&'static str, &'static str) {
        let (_, model_type, class) = Self::NAMES[self as usize];
        (model_type, class)
    }
}

fn default_epsilon() -> f32 {
    1e-6
}
fn default_theta() -> f32 {
    10_000.0
}
fn default_range() -> f32 {
    0.02
}

/// The window that `transformers` takes where a file that asks for one has no `sliding_window`; null stands for none.
const DEFAULT_WINDOW: usize = 4096;

/// The first layer with a window where a Qwen2's file does not say.
const DEFAULT_WINDOW_LAYERS: usize = 28;

/// The names of layers in `layer_types`, without a window and with one.
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

/// A named size.
struct Preset {
    name: &'static str,
    variant: Variant,
    vocab_size: usize,
    width: usize,
    inner: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    positions: usize,
    window: Option<usize>,
    epsilon: f32,
    theta: f32,
    /// How much Llama 3.1 and later stretch their positions.
    stretch: Option<f32>,
    tied: bool,
}

/// Llama as its first versions are.
const PLAIN: Preset = Preset {
    name: "",
    variant: Variant::Llama,
    vocab_size: 32_000,
    width: 0,
    inner: 0,
    layers: 0,
    heads: 0,
    kv_heads: 0,
    positions: 2048,
    window: None,
    epsilon: 1e-5,
    theta: 10_000.0,
    stretch: None,
    tied: false,
};
/// Llama as it was first published.
const LLAMA1: Preset = Preset { epsilon: 1e-6, ..PLAIN };
const LLAMA2: Preset = Preset { positions: 4096, ..PLAIN };
const CODE_LLAMA: Preset = Preset { positions: 16_384, theta: 1_000_000.0, ..PLAIN };
const SMOLLM2: Preset = Preset { vocab_size: 49_152, positions: 8192, theta: 100_000.0, tied: true, ..PLAIN };
const LLAMA3: Preset = Preset { vocab_size: 128_256, positions: 131_072, theta: 500_000.0, ..PLAIN };
const MISTRAL: Preset = Preset {
    variant: Variant::Mistral,
    width: 4096,
    inner: 14_336,
    layers: 32,
    heads: 32,
    kv_heads: 8,
    positions: 32_768,
    ..PLAIN
};
const QWEN2: Preset = Preset {
    variant: Variant::Qwen2,
    vocab_size: 151_936,
    positions: 32_768,
    epsilon: 1e-6,
    theta: 1_000_000.0,
    tied: true,
    ..PLAIN
};

/// Qwen2 and Qwen2.5 from 7B up.
const LARGE_QWEN2: Preset = Preset { vocab_size: 152_064, positions: 131_072, tied: false, ..QWEN2 };

/// The published sizes: those of the first of each preset's names in `hub.rs`. Of Qwen2 and Qwen2.5 these are the base
/// models; those tuned for instructions have 32,768 positions and an epsilon of 1e-6 in all sizes.
/// Source: each model's config.json on the Hugging Face hub, compared with copies of it. SmolLM2, TinyLlama, OpenLLaMA, Code
/// Llama, Mistral and Llama from 2 on: litgpt 0.5.13, `config.py`. Llama 1: EasyLM, `LLAMA_STANDARD_CONFIGS`. Qwen2.5:
/// torchtune, `qwen2_5/_model_builders.py`. Qwen2: NeMo, `collections/llm/gpt/model/qwen2.py`.
#[rustfmt::skip]
const PRESETS: &[Preset] = &[
    Preset { name: "smollm2-135m", width: 576, inner: 1536, layers: 30, heads: 9, kv_heads: 3, ..SMOLLM2 },
    Preset { name: "smollm2-360m", width: 960, inner: 2560, layers: 32, heads: 15, kv_heads: 5, ..SMOLLM2 },
    Preset { name: "smollm2-1.7b", width: 2048, inner: 8192, layers: 24, heads: 32, kv_heads: 32, theta: 130_000.0, ..SMOLLM2 },
    Preset { name: "tinyllama-1.1b", width: 2048, inner: 5632, layers: 22, heads: 32, kv_heads: 4, ..PLAIN },
    Preset { name: "open-llama-3b", width: 3200, inner: 8640, layers: 26, heads: 32, kv_heads: 32, ..LLAMA1 },
    Preset { name: "open-llama-7b", width: 4096, inner: 11_008, layers: 32, heads: 32, kv_heads: 32, ..LLAMA1 },
    Preset { name: "open-llama-13b", width: 5120, inner: 13_824, layers: 40, heads: 40, kv_heads: 40, ..LLAMA1 },
    Preset { name: "llama-7b", width: 4096, inner: 11_008, layers: 32, heads: 32, kv_heads: 32, ..LLAMA1 },
    Preset { name: "llama-13b", width: 5120, inner: 13_824, layers: 40, heads: 40, kv_heads: 40, ..LLAMA1 },
    Preset { name: "llama-30b", width: 6656, inner: 17_920, layers: 60, heads: 52, kv_heads: 52, ..LLAMA1 },
    Preset { name: "llama-65b", width: 8192, inner: 22_016, layers: 80, heads: 64, kv_heads: 64, epsilon: 1e-5, ..LLAMA1 },
    Preset { name: "llama-2-7b", width: 4096, inner: 11_008, layers: 32, heads: 32, kv_heads: 32, ..LLAMA2 },
    Preset { name: "llama-2-13b", width: 5120, inner: 13_824, layers: 40, heads: 40, kv_heads: 40, ..LLAMA2 },
    Preset { name: "llama-2-70b", width: 8192, inner: 28_672, layers: 80, heads: 64, kv_heads: 8, ..LLAMA2 },
    Preset { name: "codellama-7b", vocab_size: 32_016, width: 4096, inner: 11_008, layers: 32, heads: 32, kv_heads: 32, ..CODE_LLAMA },
    Preset { name: "codellama-13b", vocab_size: 32_016, width: 5120, inner: 13_824, layers: 40, heads: 40, kv_heads: 40, ..CODE_LLAMA },
    Preset { name: "codellama-34b", width: 8192, inner: 22_016, layers: 48, heads: 64, kv_heads: 8, ..CODE_LLAMA },
    Preset { name: "codellama-7b-python", width: 4096, inner: 11_008, layers: 32, heads: 32, kv_heads: 32, ..CODE_LLAMA },
    Preset { name: "codellama-13b-python", width: 5120, inner: 13_824, layers: 40, heads: 40, kv_heads: 40, ..CODE_LLAMA },
    Preset { name: "llama-3.2-1b", width: 2048, inner: 8192, layers: 16, heads: 32, kv_heads: 8, stretch: Some(32.0), tied: true, ..LLAMA3 },
    Preset { name: "llama-3.2-3b", width: 3072, inner: 8192, layers: 28, heads: 24, kv_heads: 8, stretch: Some(32.0), tied: true, ..LLAMA3 },
    Preset { name: "llama-3-8b", width: 4096, inner: 14_336, layers: 32, heads: 32, kv_heads: 8, positions: 8192, ..LLAMA3 },
    Preset { name: "llama-3-70b", width: 8192, inner: 28_672, layers: 80, heads: 64, kv_heads: 8, positions: 8192, ..LLAMA3 },
    Preset { name: "llama-3.1-8b", width: 4096, inner: 14_336, layers: 32, heads: 32, kv_heads: 8, stretch: Some(8.0), ..LLAMA3 },
    Preset { name: "llama-3.1-70b", width: 8192, inner: 28_672, layers: 80, heads: 64, kv_heads: 8, stretch: Some(8.0), ..LLAMA3 },
    Preset { name: "llama-3.1-405b", width: 16_384, inner: 53_248, layers: 126, heads: 128, kv_heads: 8, stretch: Some(8.0), ..LLAMA3 },
    Preset { name: "llama-3.3-70b", width: 8192, inner: 28_672, layers: 80, heads: 64, kv_heads: 8, stretch: Some(8.0), ..LLAMA3 },
    Preset { name: "mistral-7b", window: Some(4096), ..MISTRAL },
    Preset { name: "mistral-7b-v0.2", theta: 1_000_000.0, ..MISTRAL },
    Preset { name: "mistral-7b-v0.3", vocab_size: 32_768, theta: 1_000_000.0, ..MISTRAL },
    Preset { name: "qwen2-0.5b", width: 896, inner: 4864, layers: 24, heads: 14, kv_heads: 2, positions: 131_072, ..QWEN2 },
    Preset { name: "qwen2-1.5b", width: 1536, inner: 8960, layers: 28, heads: 12, kv_heads: 2, positions: 131_072, ..QWEN2 },
    Preset { name: "qwen2-7b", width: 3584, inner: 18_944, layers: 28, heads: 28, kv_heads: 4, ..LARGE_QWEN2 },
    Preset { name: "qwen2-72b", width: 8192, inner: 29_568, layers: 80, heads: 64, kv_heads: 8, epsilon: 1e-5, ..LARGE_QWEN2 },
    Preset { name: "qwen2.5-0.5b", width: 896, inner: 4864, layers: 24, heads: 14, kv_heads: 2, ..QWEN2 },
    Preset { name: "qwen2.5-1.5b", width: 1536, inner: 8960, layers: 28, heads: 12, kv_heads: 2, positions: 131_072, ..QWEN2 },
    Preset { name: "qwen2.5-3b", width: 2048, inner: 11_008, layers: 36, heads: 16, kv_heads: 2, ..QWEN2 },
    Preset { name: "qwen2.5-7b", width: 3584, inner: 18_944, layers: 28, heads: 28, kv_heads: 4, ..LARGE_QWEN2 },
    Preset { name: "qwen2.5-14b", width: 5120, inner: 13_824, layers: 48, heads: 40, kv_heads: 8, epsilon: 1e-5, ..LARGE_QWEN2 },
    Preset { name: "qwen2.5-32b", width: 5120, inner: 27_648, layers: 64, heads: 40, kv_heads: 8, epsilon: 1e-5, ..LARGE_QWEN2 },
    Preset { name: "qwen2.5-72b", width: 8192, inner: 29_568, layers: 80, heads: 64, kv_heads: 8, epsilon: 1e-5, ..LARGE_QWEN2 },
    Preset { name: "r1-distill-qwen-1.5b", width: 1536, inner: 8960, layers: 28, heads: 12, kv_heads: 2, positions: 131_072, theta: 10_000.0, tied: false, ..QWEN2 },
];

impl Preset {
    fn config(&self) -> LlamaConfig {
        LlamaConfig {
            vocab_size: self.vocab_size,
            hidden_size: self.width,
            intermediate_size: self.inner,
            num_hidden_layers: self.layers,
            num_attention_heads: self.heads,
            num_key_value_heads: self.kv_heads,
            head_dim: self.width / self.heads,
            max_position_embeddings: self.positions,
            rms_norm_eps: self.epsilon,
            rope_theta: self.theta,
            tie_word_embeddings: self.tied,
            attention_dropout: 0.0,
            initializer_range: default_range(),
            sliding_window: self.window,
            sliding_layers: vec![],
            variant: self.variant,
            qkv_bias: self.variant == Variant::Qwen2,
            output_bias: false,
            mlp_bias: false,
            scaling: self.stretch.map_or(RopeScaling::None, |factor| RopeScaling::Llama3 {
                factor,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_positions: 8192,
            }),
        }
    }
}

impl LlamaConfig {
    /// Names of the presets.
    pub(super) fn preset_names() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|p| p.name)
    }

    pub(super) fn preset(name: &str) -> Option<Self> {
        PRESETS.iter().find(|p| p.name == name).map(Preset::config)
    }

    /// Reads the keys; refuses those that ask for a variant that is not built. Errors: `BadConfig`.
    pub(super) fn from_value(mut value: Value) -> Result<Self, GraphError> {
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
        let found = Variant::NAMES.into_iter().find(|(_, name, _)| *name == model_type);
        let variant = found.ok_or_else(|| bad("model_type", format!("is `{model_type}`")))?.0;
        let flag = |key: &str| match value.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(found) => found.as_bool().ok_or_else(|| bad(key, format!("is {found}; it must be true or false"))),
        };
        let of_llama = variant == Variant::Llama;
        let biased = of_llama && flag("attention_bias")?;
        let mlp_bias = of_llama && flag("mlp_bias")?;
        let sliding_layers = match variant {
            Variant::Llama => None,
            Variant::Mistral => Some(vec![]),
            Variant::Qwen2 => sliding_layers(&value, flag("use_sliding_window")?)?,
        };
        let (theta, scaling) = rope(&value)?;
        let heads = value["num_attention_heads"].as_u64().unwrap_or(1).max(1);
        let map = value.as_object_mut().ok_or_else(|| bad("(file)", "is not an object"))?;
        let absent = |map: &serde_json::Map<String, Value>, key: &str| map.get(key).is_none_or(Value::is_null);
        if absent(map, "num_key_value_heads") {
            map.insert("num_key_value_heads".into(), json!(heads));
        }
        if absent(map, "head_dim") {
            let width = map["hidden_size"].as_u64().unwrap_or(0);
            if !width.is_multiple_of(heads) {
                let problem =
                    format!("is {heads}, which does not divide hidden_size = {width}, and there is no head_dim");
                return Err(bad("num_attention_heads", problem));
            }
            map.insert("head_dim".into(), json!(width / heads));
        }
        if sliding_layers.is_some() {
            map.entry("sliding_window").or_insert(json!(DEFAULT_WINDOW));
        } else {
            map.remove("sliding_window");
        }
        if let Some(theta) = theta {
            map.insert("rope_theta".into(), json!(theta));
        }
        map.retain(|_, value| !value.is_null());
        let mut config: Self = parse(value)?;
        (config.variant, config.sliding_layers) = (variant, sliding_layers.unwrap_or_default());
        config.qkv_bias = biased || variant == Variant::Qwen2;
        (config.output_bias, config.mlp_bias, config.scaling) = (biased, mlp_bias, scaling);
        config.validate()?;
        Ok(config)
    }

    fn attention_width(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    fn kv_width(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }

    fn rotary(&self, offset: bool) -> Rotary {
        Rotary { head_size: self.head_dim, base: self.rope_theta, scaling: self.scaling, inverse: false, offset }
    }

    /// How many tokens each token of a layer attends to at most, itself included.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.sliding_window.filter(|_| self.sliding_layers.get(layer).is_none_or(|&slides| slides))
    }

    /// Attention of a block. Returns what is added to the residual stream.
    fn attend(
        &self,
        builder: &mut ProgramBuilder,
        (block, window): (&Block, Option<usize>),
        normed: TensorId,
        inputs: &Inputs,
        cache: Option<[TensorId; 2]>,
        dropouts: &mut Dropouts,
    ) -> Result<TensorId, GraphError> {
        let [q, k, v] = [&block.q, &block.k, &block.v].map(|p| p.apply(builder, normed));
        let rotary = self.rotary(cache.is_some());
        let (q, k, v) = (builder.apply(rotary, &[q?])?, builder.apply(rotary, &[k?])?, v?);
        let (heads, kv_heads) = (self.num_attention_heads, self.num_key_value_heads);
        let scale = 1.0 / (self.head_dim as f32).sqrt();
        let dropout = dropouts.key(self.attention_dropout);
        let y = if let Some([keys, values]) = cache {
            let capacity = builder.graph[keys].ty.shape[1];
            let op = CachedAttention { heads, kv_heads, packed: false, window, scale, bias: None, capacity };
            builder.push_into(op, &[q, k, v], &[None, Some(keys), Some(values)])?[0]
        } else {
            let op = Attention {
                heads,
                kv_heads,
                packed: false,
                causal: true,
                window,
                scale,
                bias: None,
                segmented: inputs.segments.is_some(),
                dropout,
                rows: ATTENTION_ROWS,
            };
            let segments = inputs.segments.map_or(vec![], |segments| vec![segments, segments]);
            builder.push(op, &[&[q, k, v], segments.as_slice()].concat())?[0]
        };
        block.o.apply(builder, y)
    }

    fn norm(&self, builder: &mut ProgramBuilder, x: TensorId, weight: TensorId) -> Result<TensorId, GraphError> {
        Ok(builder.push(RmsNorm { eps: self.rms_norm_eps }, &[x, weight])?[0])
    }
}

/// Which layers of a Qwen2 attend within the window: those that `layer_types` names, or all from `max_window_layers` on.
/// `None` if no layer does. Errors: `BadConfig`.
/// Source: transformers 5.24, `configuration_qwen2.py`.
fn sliding_layers(value: &Value, windowed: bool) -> Result<Option<Vec<bool>>, GraphError> {
    let whole = |key: &str, default| match value.get(key).filter(|found| !found.is_null()) {
        None => Ok(default),
        Some(found) => {
            let number = found.as_u64().and_then(|number| usize::try_from(number).ok());
            number.ok_or_else(|| bad(key, format!("is {found}; it must be a whole number")))
        }
    };
    let layers = whole("num_hidden_layers", 0)?;
    check_layers("num_hidden_layers", layers)?;
    let slides = match value.get("layer_types").filter(|found| !found.is_null()) {
        None => {
            let first = whole("max_window_layers", DEFAULT_WINDOW_LAYERS)?;
            (0..layers).map(|layer| windowed && layer >= first).collect::<Vec<_>>()
        }
        Some(types) => {
            let slides = |name: &Value| LAYER_TYPES.iter().position(|known| name == known).map(|place| place == 1);
            let found = types.as_array().filter(|types| types.len() == layers);
            let found = found.and_then(|types| types.iter().map(slides).collect::<Option<Vec<_>>>());
            found.ok_or_else(|| {
                bad(
                    "layer_types",
                    format!("is {types}; it must name each of {layers} layers: {}", LAYER_TYPES.join(" or ")),
                )
            })?
        }
    };
    if !slides.contains(&true) {
        return Ok(None);
    }
    if !windowed || value.get("sliding_window").is_some_and(Value::is_null) {
        return Err(bad(
            "layer_types",
            "asks for sliding_attention, but use_sliding_window and sliding_window set no window",
        ));
    }
    Ok(Some(slides))
}

/// The base and the scaling of rotary positions: under `rope_parameters`, as newer files have it, or as older ones do.
fn rope(value: &Value) -> Result<(Option<f64>, RopeScaling), GraphError> {
    let (key, found) = match value.get("rope_parameters").filter(|v| !v.is_null()) {
        Some(found) => ("rope_parameters", found),
        None => ("rope_scaling", value.get("rope_scaling").unwrap_or(&Value::Null)),
    };
    if found.is_null() {
        return Ok((None, RopeScaling::None));
    }
    let theta = found.get("rope_theta").and_then(Value::as_f64);
    let number = |name: &str| {
        let number = found.get(name).and_then(Value::as_f64).filter(|x| x.is_finite() && *x > 0.0);
        number.map(|x| x as f32).ok_or_else(|| bad(key, format!("needs a number above zero under `{name}`")))
    };
    let optional = |name: &str, default: f32| match found.get(name).filter(|v| !v.is_null()) {
        Some(_) => number(name),
        None => Ok(default),
    };
    let original = |default: Option<u64>| {
        let key_of = "original_max_position_embeddings";
        let positions = found.get(key_of).filter(|v| !v.is_null()).map_or(default, Value::as_u64);
        let sensible = positions.and_then(|p| usize::try_from(p).ok()).filter(|p| (1..=LARGEST_EXTENT).contains(p));
        sensible.ok_or_else(|| bad(key, format!("needs a whole number above zero under `{key_of}`")))
    };
    let kind = found.get("rope_type").or_else(|| found.get("type")).and_then(Value::as_str).unwrap_or("default");
    let scaling = match kind {
        // Sequences never exceed the positions, and up to there this kind changes nothing.
        "default" | "dynamic" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: number("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: number("factor")?,
            low_freq_factor: number("low_freq_factor")?,
            high_freq_factor: number("high_freq_factor")?,
            original_max_positions: original(None)?,
        },
        "yarn" => RopeScaling::Yarn {
            factor: number("factor")?,
            beta_fast: optional("beta_fast", 32.0)?,
            beta_slow: optional("beta_slow", 1.0)?,
            original_max_positions: original(value.get("max_position_embeddings").and_then(Value::as_u64))?,
            attention_factor: match found.get("attention_factor").filter(|v| !v.is_null()) {
                Some(_) => Some(number("attention_factor")?),
                None => None,
            },
        },
        other => {
            return Err(bad(key, format!("asks for `{other}`; default, linear, dynamic, llama3 and yarn work")));
        }
    };
    if kind == "yarn" {
        refuse_others(found, &[("mscale", &[]), ("mscale_all_dim", &[]), ("truncate", &[json!(true)])])?;
    }
    Ok((theta, scaling))
}

impl Family for LlamaConfig {
    type Parameters = Parameters;

    fn to_json(&self) -> String {
        let (model_type, class) = self.variant.names();
        let scaling = match self.scaling {
            RopeScaling::None => Value::Null,
            RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => json!({
                "rope_type": "llama3", "factor": factor, "low_freq_factor": low_freq_factor,
                "high_freq_factor": high_freq_factor,
                "original_max_position_embeddings": original_max_positions,
            }),
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original_max_positions, attention_factor } => json!({
                "rope_type": "yarn", "factor": factor, "beta_fast": beta_fast, "beta_slow": beta_slow,
                "original_max_position_embeddings": original_max_positions,
                "attention_factor": attention_factor,
            }),
        };
        let mut more = json!({
            "model_type": model_type, "architectures": [class], "hidden_act": "silu", "torch_dtype": "float32",
            "rope_scaling": scaling, "attention_bias": self.output_bias, "mlp_bias": self.mlp_bias,
            "use_sliding_window": self.variant == Variant::Qwen2 && self.sliding_window.is_some(),
        });
        if self.variant == Variant::Qwen2 && self.sliding_window.is_some() {
            let slides = (0..self.num_hidden_layers).map(|layer| self.window(layer).is_some());
            more["max_window_layers"] =
                json!(slides.clone().position(|slides| slides).unwrap_or(self.num_hidden_layers));
            more["layer_types"] = slides.map(|slides| LAYER_TYPES[usize::from(slides)]).collect();
        }
        super::keys::to_json(self, &more)
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
        ])?;
        check_extents(&[("head_dim", self.attention_width()), ("sliding_window", self.sliding_window.unwrap_or(1))])?;
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

    fn blocks(&self) -> usize {
        self.num_hidden_layers
    }

    fn max_positions(&self) -> usize {
        self.max_position_embeddings
    }

    fn set_max_positions(&mut self, positions: usize) {
        self.max_position_embeddings = positions;
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn set_vocab_size(&mut self, vocab_size: usize) {
        self.vocab_size = vocab_size;
    }

    fn set_dropout(&mut self, rate: f32) {
        self.attention_dropout = rate;
    }

    fn elements_per_token(&self) -> u128 {
        let widest = self.intermediate_size.max(self.hidden_size).max(self.attention_width());
        widest as u128 * self.num_hidden_layers as u128
    }

    fn parameter_bound(&self) -> u128 {
        let c = self.hidden_size as u128;
        let attention = 4 * self.attention_width() as u128;
        let block = attention + 3 * self.intermediate_size as u128 + 4;
        c * (2 * self.vocab_size as u128 + 1 + block * self.num_hidden_layers as u128)
    }

    fn declare(&self, graph: &mut Graph) -> Parameters {
        let (c, std) = (self.hidden_size, self.initializer_range);
        let table = graph.parameter("model.embed_tokens.weight", &[self.vocab_size, c], Init::Normal(std), true);
        let mut blocks = Vec::with_capacity(self.num_hidden_layers);
        for layer in 0..self.num_hidden_layers {
            let name = |suffix: &str| format!("model.layers.{layer}.{suffix}");
            let norm = |graph: &mut Graph, which: &str| {
                graph.parameter(name(&format!("{which}.weight")), &[c], Init::Ones, false)
            };
            let norm1 = norm(graph, "input_layernorm");
            let mut project =
                |suffix: &str, extents, bias| Projection::declare(graph, &name(suffix), extents, std, bias);
            let q = project("self_attn.q_proj", [c, self.attention_width()], self.qkv_bias);
            let k = project("self_attn.k_proj", [c, self.kv_width()], self.qkv_bias);
            let v = project("self_attn.v_proj", [c, self.kv_width()], self.qkv_bias);
            let o = project("self_attn.o_proj", [self.attention_width(), c], self.output_bias);
            let gate = project("mlp.gate_proj", [c, self.intermediate_size], self.mlp_bias);
            let up = project("mlp.up_proj", [c, self.intermediate_size], self.mlp_bias);
            let down = project("mlp.down_proj", [self.intermediate_size, c], self.mlp_bias);
            let norm2 = norm(graph, "post_attention_layernorm");
            blocks.push(Block { norm1, q, k, v, o, norm2, gate, up, down });
        }
        let last_norm = graph.parameter("model.norm.weight", &[c], Init::Ones, false);
        let head = match self.tie_word_embeddings {
            true => table,
            false => graph.parameter("lm_head.weight", &[self.vocab_size, c], Init::Normal(std), true),
        };
        Parameters { table, blocks, last_norm, head }
    }

    fn head(parameters: &Parameters) -> TensorId {
        parameters.head
    }

    fn forward(
        &self,
        builder: &mut ProgramBuilder,
        parameters: &Parameters,
        inputs: &Inputs,
        mode: Mode,
        caches: &Caches,
    ) -> Result<TensorId, GraphError> {
        let mut dropouts = Dropouts::new(mode);
        builder.scope("embedding", None);
        let mut x = builder.apply(Embedding, &[inputs.tokens, parameters.table])?;
        for (layer, block) in parameters.blocks.iter().enumerate() {
            let number = u32::try_from(layer).ok();
            builder.scope(format!("h{layer}/attention"), number);
            let normed = self.norm(builder, x, block.norm1)?;
            let cache = caches.own.get(layer).copied();
            let y = self.attend(builder, (block, self.window(layer)), normed, inputs, cache, &mut dropouts)?;
            x = builder.apply(Add, &[x, y])?;
            builder.scope(format!("h{layer}/mlp"), number);
            let normed = self.norm(builder, x, block.norm2)?;
            let (gate, up) = (block.gate.apply(builder, normed)?, block.up.apply(builder, normed)?);
            let gated = builder.apply(Gated { activation: Activation::Silu }, &[gate, up])?;
            let y = block.down.apply(builder, gated)?;
            x = builder.apply(Add, &[x, y])?;
        }
        builder.scope("head", None);
        self.norm(builder, x, parameters.last_norm)
    }

    fn cache_shapes(&self, rows: usize, positions: usize, _source: usize) -> CacheShapes {
        let shape = vec![rows, positions, self.kv_width()];
        CacheShapes { own: vec![[shape.clone(), shape]; self.num_hidden_layers], source: vec![] }
    }
}

/// The parameters in a graph.
#[derive(Debug, Clone)]
pub struct Parameters {
    table: TensorId,
    blocks: Vec<Block>,
    last_norm: TensorId,
    head: TensorId,
}

#[derive(Debug, Clone)]
struct Block {
    norm1: TensorId,
    q: Projection,
    k: Projection,
    v: Projection,
    o: Projection,
    norm2: TensorId,
    gate: Projection,
    up: Projection,
    down: Projection,
}
