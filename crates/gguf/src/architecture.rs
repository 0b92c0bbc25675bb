//! Which models llama.cpp runs, and under which architecture. What it computes differently from a model's configuration is a
//! problem that is reported, and not ignored.
//! Source: `MODEL_ARCH` of the package `gguf` (0.19), `constants.py`; llama.cpp's loader and graphs of each architecture for
//! what they fix, such as activations and the layers with windows.

use crate::GgufError;
use plimsoll_graph::models::description::{
    Attention, AttentionInputs, Decoder, Encoder, EncoderDecoder, FeedForward, Inner, Linear, NormFormula,
};
use plimsoll_graph::models::{Description, ModelConfig};
use plimsoll_graph::ops::{Activation, RopeScaling};
use serde_json::Value;

/// An architecture of llama.cpp.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Architecture {
    /// Its name there.
    pub(crate) name: &'static str,
    /// Whether it rotates neighboring channels of a head together.
    pub(crate) pairs_neighbors: bool,
    /// Whether it reads divisors of rotary frequencies.
    pub(crate) has_rope_factors: bool,
    windows: Windows,
    biases: Biases,
    activation: Activation,
    /// Whether the weights of a token's experts sum to one.
    normalizes_experts: bool,
}

/// The layers that have a window.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Windows {
    /// None: a model with windows is right up to its window.
    None,
    /// All but every N-th, counted from the last of N.
    AllBut(usize),
}

/// The linear layers that have biases.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Biases {
    None,
    /// Those of queries, keys and values.
    Inputs,
    /// Any may have one.
    Any,
    All,
}

const PLAIN: Architecture = Architecture {
    name: "",
    pairs_neighbors: false,
    has_rope_factors: false,
    windows: Windows::None,
    biases: Biases::None,
    activation: Activation::Silu,
    normalizes_experts: true,
};

/// The `model_type`s that have an architecture.
const ARCHITECTURES: &[(&str, Architecture)] = &[
    ("gpt2", Architecture { name: "gpt2", biases: Biases::All, activation: Activation::GeluTanh, ..PLAIN }),
    ("llama", Architecture { name: "llama", biases: Biases::Any, ..INTERLEAVED }),
    ("mistral", Architecture { name: "llama", biases: Biases::Any, ..INTERLEAVED }),
    ("mixtral", Architecture { name: "llama", biases: Biases::Any, ..INTERLEAVED }),
    ("granite", Architecture { name: "granite", biases: Biases::Any, has_rope_factors: false, ..INTERLEAVED }),
    ("smollm3", Architecture { name: "smollm3", has_rope_factors: false, ..INTERLEAVED }),
    ("qwen2", Architecture { name: "qwen2", biases: Biases::Inputs, ..PLAIN }),
    ("qwen3", Architecture { name: "qwen3", ..PLAIN }),
    ("qwen3_moe", Architecture { name: "qwen3moe", ..PLAIN }),
    ("phi3", Architecture { name: "phi3", ..PLAIN }),
    ("olmo2", Architecture { name: "olmo2", windows: Windows::AllBut(4), ..PLAIN }),
    ("olmo3", Architecture { name: "olmo2", windows: Windows::AllBut(4), ..PLAIN }),
    ("olmoe", Architecture { name: "olmoe", normalizes_experts: false, ..PLAIN }),
    ("gemma", Architecture { name: "gemma", activation: Activation::GeluTanh, ..PLAIN }),
    ("gemma2", Architecture { name: "gemma2", windows: Windows::AllBut(2), activation: Activation::GeluTanh, ..PLAIN }),
    (
        "gemma3_text",
        Architecture { name: "gemma3", windows: Windows::AllBut(6), activation: Activation::GeluTanh, ..PLAIN },
    ),
    ("gpt_oss", Architecture { name: GPT_OSS, windows: Windows::AllBut(2), biases: Biases::All, ..PLAIN }),
    ("t5", Architecture { name: "t5", activation: Activation::GeluTanh, ..PLAIN }),
    ("mt5", Architecture { name: "t5", activation: Activation::GeluTanh, ..PLAIN }),
    ("bert", Architecture { name: "bert", biases: Biases::All, activation: Activation::Gelu, ..PLAIN }),
    ("modernbert", Architecture { name: "modern-bert", activation: Activation::Gelu, ..PLAIN }),
];

const INTERLEAVED: Architecture = Architecture { pairs_neighbors: true, has_rope_factors: true, ..PLAIN };

const GPT_OSS: &str = "gpt-oss";

/// The constants of gpt-oss's activation, and the bound of T5's distances, which llama.cpp fixes.
const SWIGLU: [f32; 2] = [1.702, 7.0];
const T5_DISTANCE: u64 = 128;

/// The `model_type`s that can be exported.
pub fn supported() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().map(|(family, _)| *family)
}

impl Architecture {
    /// The architecture of a model. Errors: `Unsupported` with all that llama.cpp lacks.
    pub(crate) fn of(model: &ModelConfig) -> Result<Self, GgufError> {
        let family = model.model_type();
        let unsupported = |problems| GgufError::Unsupported { family: family.to_owned(), problems };
        let Some((_, architecture)) = ARCHITECTURES.iter().find(|(name, _)| *name == family) else {
            return Err(unsupported(vec!["it has no such architecture".to_owned()]));
        };
        let mut problems = Problems { architecture, keys: keys_of(model), found: vec![] };
        match model.describe() {
            Description::Decoder(decoder) => problems.of_decoder(&decoder),
            Description::EncoderDecoder(model) => problems.of_encoder_decoder(&model),
            Description::Encoder(encoder) => problems.of_encoder(&encoder),
        }
        match problems.found.is_empty() {
            true => Ok(architecture.clone()),
            false => Err(unsupported(problems.found)),
        }
    }

    pub(crate) fn is_gpt_oss(&self) -> bool {
        self.name == GPT_OSS
    }

    /// Whether it has windows of attention.
    pub(crate) fn has_windows(&self) -> bool {
        self.windows != Windows::None
    }

    fn is_gemma(&self) -> bool {
        self.name.starts_with("gemma")
    }

    fn is_granite(&self) -> bool {
        self.name == "granite"
    }
}

/// The keys of a model's config.json.
pub(crate) fn keys_of(model: &ModelConfig) -> Value {
    serde_json::from_str(&model.to_json()).expect("a configuration is JSON")
}

/// Whether two factors are the same up to rounding.
fn is_near(a: f32, b: f32) -> bool {
    (a - b).abs() <= 1e-5 * b.abs()
}

/// What llama.cpp lacks.
struct Problems<'a> {
    architecture: &'a Architecture,
    keys: Value,
    found: Vec<String>,
}

impl Problems<'_> {
    fn expect(&mut self, is_right: bool, problem: impl Into<String>) {
        let problem = problem.into();
        if !is_right && !self.found.contains(&problem) {
            self.found.push(problem);
        }
    }

    fn of_decoder(&mut self, model: &Decoder) {
        let architecture = self.architecture;
        let (is_gemma, is_granite) = (architecture.is_gemma(), architecture.is_granite());
        for (layer, block) in model.blocks.iter().enumerate() {
            self.attention(&block.attention, model);
            self.feed_forward(&block.feed_forward);
            self.rotation(layer, &block.attention);
            self.window(layer, block.attention.window, model.max_positions);
            let mixes = block.feed_forward.experts.is_some() != model.blocks[0].feed_forward.experts.is_some();
            self.expect(!mixes, "some layers have experts and others none");
            self.expect(is_granite || block.residual_scale.is_none(), "results are scaled before they are added");
        }
        let embedding_scale = model.embedding_scale.unwrap_or(1.0);
        let usual = if is_gemma { (model.width as f32).sqrt() } else { 1.0 };
        self.expect(is_granite || is_near(embedding_scale, usual), "the embedding is scaled");
        self.expect(is_granite || model.head_scale.is_none(), "the head's input is scaled");
        let is_capped = model.logit_cap.is_some();
        self.expect(!is_capped || matches!(architecture.name, "gemma2" | "gemma3"), "logits have a soft limit");
        self.expect(is_capped || architecture.name != "gemma2", "logits have no soft limit");
        let is_tied = matches!(architecture.name, "gemma" | "gemma2");
        self.expect(!is_tied || model.head.is_none(), "the output head is not tied to the embedding");
    }

    fn attention(&mut self, attention: &Attention, model: &Decoder) {
        let name = self.architecture.name;
        let usual = match name {
            // llama.cpp recognizes the largest Gemmas by their layers.
            "gemma2" if model.blocks.len() == 46 => model.width as f32 / attention.heads as f32,
            "gemma3" if model.blocks.len() == 62 => model.width as f32 / attention.heads as f32,
            _ => attention.head_size as f32,
        };
        let is_usual = is_near(attention.scale, 1.0 / usual.sqrt());
        self.expect(name == "granite" || is_usual, "attention has its own scale");
        let problem = if attention.cap.is_some() { "have a soft limit" } else { "have no soft limit" };
        self.expect((name == "gemma2") == attention.cap.is_some(), format!("scores of attention {problem}"));
        let own_size = attention.head_size * attention.heads != model.width;
        self.expect(name != "granite" || !own_size, "heads have a size of their own");
        for (place, layer) in attention.inputs.layers().iter().enumerate() {
            self.bias(layer, Biases::Inputs, place < 3);
        }
        self.bias(&attention.output, Biases::All, false);
    }

    /// `kind`: the biases that include this layer's; `is_input`: whether it computes queries, keys or values.
    fn bias(&mut self, layer: &Linear, kind: Biases, is_input: bool) {
        let expected = match self.architecture.biases {
            Biases::Any => return,
            Biases::All => true,
            Biases::None => false,
            Biases::Inputs => kind == Biases::Inputs && is_input,
        };
        let what = if expected { "lacks a bias" } else { "has a bias" };
        self.expect(layer.bias == expected, format!("`{}` {what}", layer.name));
    }

    fn feed_forward(&mut self, part: &FeedForward) {
        let activation = match &part.inner {
            Inner::Gated { activation, .. } => Some(*activation),
            Inner::Gelu(_) => Some(Activation::GeluTanh),
            // llama.cpp approximates the exact function.
            Inner::ExactGelu(_) => Some(Activation::Gelu),
            Inner::Relu(_) => Some(Activation::Relu),
            Inner::ClampedSwiglu { activation, .. } => {
                let is_usual = is_near(activation.alpha, SWIGLU[0]) && is_near(activation.limit, SWIGLU[1]);
                self.expect(is_usual, "`swiglu_alpha` or `swiglu_limit` is not that of gpt-oss");
                None
            }
        };
        let is_right = activation.is_none_or(|activation| activation == self.architecture.activation);
        self.expect(is_right, "the feed-forward layers have another activation");
        let Some(experts) = &part.experts else {
            for layer in part.inner.layers().iter().chain([&part.down]) {
                self.bias(layer, Biases::All, false);
            }
            return;
        };
        let normalizes = self.architecture.normalizes_experts;
        let problem = if normalizes { "do not sum to one" } else { "sum to one" };
        self.expect(experts.normalized == normalizes, format!("the weights of a token's experts {problem}"));
    }

    fn rotation(&mut self, layer: usize, attention: &Attention) {
        let name = self.architecture.name;
        let Some(rotary) = &attention.rotary else {
            let is_right = name == "gpt2" || name == "smollm3" && (layer + 1).is_multiple_of(4);
            return self.expect(is_right, "other layers than every fourth have no rotary positions");
        };
        let is_fourth = name == "smollm3" && (layer + 1).is_multiple_of(4);
        self.expect(!is_fourth, "every fourth layer has rotary positions");
        let is_whole = rotary.rotated == attention.head_size;
        self.expect(name == "phi3" || is_whole, "only a part of each head is rotated");
        let scaling = &rotary.scaling;
        let is_known = match &scaling.scaling {
            RopeScaling::None | RopeScaling::Linear { .. } => scaling.longer.is_none(),
            RopeScaling::Llama3 { .. } => self.architecture.has_rope_factors,
            RopeScaling::Yarn { truncate, .. } => *truncate || self.architecture.is_gpt_oss(),
            RopeScaling::LongRope { .. } => name == "phi3" && scaling.longer.is_some(),
            RopeScaling::Proportional { .. } => false,
        };
        self.expect(is_known, "it does not scale rotary positions in this way");
    }

    fn window(&mut self, layer: usize, window: Option<usize>, most: usize) {
        let Windows::AllBut(period) = self.architecture.windows else { return };
        let is_shorter = window.is_some_and(|window| window < most);
        let slides = !(layer + 1).is_multiple_of(period);
        // OLMo 2 has no windows.
        let is_right = is_shorter == slides || self.keys["model_type"] == "olmo2" && !is_shorter;
        self.expect(is_right || window.is_some_and(|window| window >= most), "other layers have windows of attention");
    }

    fn of_encoder_decoder(&mut self, model: &EncoderDecoder) {
        for stack in model.stacks() {
            let is_known = match &stack.feed_forward.inner {
                Inner::Gated { activation, .. } => *activation == Activation::GeluTanh,
                inner => matches!(inner, Inner::Relu(_)),
            };
            self.expect(is_known, "the feed-forward layers have another activation");
        }
        let distance = self.keys["relative_attention_max_distance"].as_u64();
        self.expect(
            distance.is_none_or(|distance| distance == T5_DISTANCE),
            "`relative_attention_max_distance` is not 128",
        );
        let heads = [&model.encoder.own, &model.decoder.own].map(|own| own.heads);
        self.expect(heads[0] == heads[1], "encoder and decoder have other numbers of heads");
    }

    fn of_encoder(&mut self, model: &Encoder) {
        let is_modern = !model.norms_follow_sums;
        let formula = NormFormula::Layer { bias: !is_modern };
        self.expect(model.embedding_norm.formula == formula, "norms have other parameters");
        for block in &model.blocks {
            for layer in block.attention.inputs.layers().iter().chain([&block.attention.output]) {
                self.bias(layer, Biases::Inputs, true);
            }
            self.feed_forward(&block.feed_forward);
            let is_packed = matches!(block.attention.inputs, AttentionInputs::Packed(_));
            self.expect(is_packed == is_modern, "attention has other layers");
        }
        let every = self.keys["global_attn_every_n_layers"].as_u64().unwrap_or(0) as usize;
        for (layer, block) in model.blocks.iter().enumerate().filter(|_| is_modern) {
            let is_right = block.attention.window.is_some() != (every > 0 && layer.is_multiple_of(every));
            self.expect(is_right, "other layers have windows of attention");
        }
    }
}
