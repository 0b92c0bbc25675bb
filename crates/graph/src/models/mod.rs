//! The model families. A family reads its config.json and describes what the model computes. A [`Description`] becomes
//! parameters and forward passes in a graph; training, evaluation and sampling share it. Presets are data.
//!
//! ```text
//!   gpt2, families, t5         each family's keys and its description
//!   description                what a model computes and the names of its parameters
//!   decoder, encoder, …        a description as nodes of a graph, from the parts in parts.rs
//! ```
//!
//! To add a family: its config with a [`Family`] and `describe`, and its line in `families!` below.

mod context_scaling;
mod decoder;
pub mod description;
mod encoder;
mod encoder_decoder;
mod families;
mod gpt2;
mod hub;
pub(crate) mod keys;
mod parts;
mod t5;

pub use context_scaling::ContextScaling;
pub use description::Description;
pub use families::{DecoderConfig, EncoderConfig};
pub use gpt2::Gpt2Config;
pub use t5::{FeedForwardProjection, T5Config};

use crate::{Graph, GraphError, ProgramBuilder, TensorId};
use decoder::DecoderWeights;
pub use encoder::EncoderWeights;
use encoder_decoder::EncoderDecoderWeights;
use plimsoll_units::spelling;

/// The purpose of a forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// With dropout; each draw drops other elements.
    Train {
        /// Index of the draw.
        draw: u32,
    },
    /// Without dropout.
    Evaluate,
    /// Processes a few tokens after earlier ones, whose keys and values are cached.
    Cached,
}

/// The inputs of a forward pass in addition to the parameters; all are integers.
#[derive(Debug, Clone, Copy)]
pub struct Inputs {
    /// Token ids (B, T); those of the source, (B, S), if the model has an encoder.
    pub tokens: TensorId,
    /// Positions of the tokens (B, T), for rows of several documents; `None` if positions count from the row's first
    /// token.
    pub positions: Option<TensorId>,
    /// Segments of the tokens: a token attends only to its own segment. In sources, tokens have 1 and padding has 0.
    pub segments: Option<TensorId>,
    /// Token ids (B, T) of the decoder, and the segments of the source that they attend to.
    pub decoder: Option<[TensorId; 2]>,
}

/// Cached keys and values for sampling, one pair per attending block.
#[derive(Debug, Clone, Default)]
pub struct Caches {
    /// For the tokens so far: (B, P, K·D) each.
    pub own: Vec<[TensorId; 2]>,
    /// For the source: (B, S, K·D) each.
    pub source: Vec<[TensorId; 2]>,
}

/// The shapes of [`Caches`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheShapes {
    /// For the tokens so far.
    pub own: Vec<[Vec<usize>; 2]>,
    /// For the source.
    pub source: Vec<[Vec<usize>; 2]>,
}

/// The interface of a family's configuration. What the model computes is in its [`Description`].
trait Family: Sized {
    /// Names of the presets, the smallest first.
    fn preset_names() -> impl Iterator<Item = &'static str>;

    /// The preset of this name.
    fn preset(name: &str) -> Option<Self>;

    /// Reads a config.json; rejects values for variants that are not implemented. Errors: `BadConfig`.
    fn from_value(value: serde_json::Value) -> Result<Self, GraphError>;

    /// A config.json for `transformers`.
    fn to_json(&self) -> String;

    /// Errors: `BadConfig` with the key whose value is impossible.
    fn validate(&self) -> Result<(), GraphError>;

    /// The `model_type` of the config.json.
    fn model_type(&self) -> &'static str;

    /// Changes the number of positions, for models trained from scratch.
    fn set_max_positions(&mut self, positions: usize);

    /// Changes the vocabulary, for models trained from scratch.
    fn set_vocab_size(&mut self, vocab_size: usize);

    /// Sets every dropout rate of the model, which must be in [0, 1).
    fn set_dropout(&mut self, rate: f32);

    /// The id that a decoder starts with; `None` if the model has no encoder.
    fn decoder_start(&self) -> Option<u32> {
        None
    }

    /// Sets the tokenizer's padding and end ids, for models trained from scratch.
    fn set_special_tokens(&mut self, _pad: u32, _end: u32) {}

    /// Whether the head is tied only if the weights contain no other head: `transformers` 5 writes such files for T5
    /// models with an untied head.
    fn leaves_head_to_weights(&self) -> bool {
        false
    }

    /// Gives such a model an untied head.
    fn untie_head(&mut self) {}
}

macro_rules! families {
    ($($name:ident($config:ty): $doc:literal);+ $(;)?) => {
        /// The configuration of a model of any family.
        #[derive(Debug, Clone, PartialEq)]
        pub enum ModelConfig {
            $(#[doc = $doc] $name($config)),+
        }

        /// Evaluates the same expression for the configuration of any family.
        macro_rules! with_config {
            ($model:expr, $it:ident => $value:expr) => {
                match $model {
                    $(ModelConfig::$name($it) => $value),+
                }
            };
        }

        impl ModelConfig {
            /// Names of all presets, by family, the smallest first.
            pub fn preset_names() -> Vec<&'static str> {
                let mut names = Vec::new();
                $(names.extend(<$config as Family>::preset_names());)+
                names
            }

            fn find_preset(name: &str) -> Option<Self> {
                $(if let Some(config) = <$config as Family>::preset(name) {
                    return Some(Self::$name(config));
                })+
                None
            }
        }
    };
}

families! {
    Gpt2(Gpt2Config): "GPT-2 and models with its architecture.";
    Decoder(DecoderConfig): "Llama and the decoders that share its keys.";
    T5(T5Config): "T5, including v1.1 and FLAN.";
    Encoder(EncoderConfig): "BERT and ModernBERT.";
}

impl ModelConfig {
    /// The preset of this name, or of the weights of this name on the Hugging Face hub; hyphens and underscores are
    /// equivalent. Errors: `UnknownModel` with suggestions.
    pub fn preset(name: &str) -> Result<Self, GraphError> {
        Self::preset_name(name).and_then(|name| Self::find_preset(&name)).ok_or_else(|| {
            let suggestions = Self::presets_near(name);
            GraphError::UnknownModel { name: name.to_owned(), suggestions }
        })
    }

    /// The name of the preset that [`Self::preset`] returns.
    pub fn preset_name(name: &str) -> Option<String> {
        let wanted = name.to_ascii_lowercase().replace('_', "-");
        let on_hub = hub::preset(name).map(str::to_owned);
        on_hub.or_else(|| Self::find_preset(&wanted).map(|_| wanted))
    }

    /// The names on the Hugging Face hub of the weights with a preset's sizes, the preferred one first; empty for
    /// Plimsoll's own presets.
    pub fn hub_names(preset: &str) -> &'static [&'static str] {
        hub::names(preset)
    }

    /// Whether a name is that of a preset or of published weights. If not, [`Self::preset_name`] uses parts of the
    /// name.
    pub fn is_published_name(name: &str) -> bool {
        hub::is_published(name)
    }

    /// Whether the hub's weights of this name are in a quantization format that trainers keep in memory, such as GPTQ.
    pub fn is_quantized_name(name: &str) -> bool {
        hub::is_quantized(name)
    }

    /// Presets with names close to an unknown one. A preset of another version of a family (`qwen2-7b` for `qwen3-8b`)
    /// counts only if one letter differs.
    fn presets_near(name: &str) -> Vec<String> {
        let wanted = name.rsplit('/').next().unwrap_or_default().replace('_', "-");
        let version = |name: &str| name.split('-').next().unwrap_or_default().replace(char::is_alphabetic, "");
        let is_of_version = |known: &&str| {
            version(known) == version(&wanted) || spelling::edits(&wanted, known).is_some_and(|edits| edits <= 1)
        };
        let known = Self::preset_names().into_iter().filter(is_of_version);
        spelling::nearest_of(&wanted, known.map(|known| (known, known.to_owned())))
    }

    /// Reads a Hugging Face config.json. Ignores keys that have no effect here; rejects keys that require an
    /// unsupported variant. Of a model that also reads images or sound, reads the text model. Errors: `BadConfig` with
    /// the key.
    pub fn from_json(text: &str) -> Result<Self, GraphError> {
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|e| keys::bad("(file)", format!("is not valid JSON: {e}")))?;
        let value = text_part(value);
        if let Some(method) = quantization(&value).filter(|method| !is_read_quantized(&value, method)) {
            let problem = "weights are read in fp32, fp16 and bf16 only; use the model that these were made from";
            return Err(keys::bad(QUANTIZATION, format!("asks for `{method}` weights, but {problem}")));
        }
        let others = || DecoderConfig::model_types().chain(EncoderConfig::model_types());
        let known = || ["gpt2", "t5", "mt5"].into_iter().chain(others()).collect::<Vec<_>>().join(", ");
        let Some(model_type) = value.get("model_type").and_then(|v| v.as_str()).map(str::to_owned) else {
            return Err(keys::bad("model_type", format!("is missing; supported: {}", known())));
        };
        match model_type.as_str() {
            "gpt2" => Gpt2Config::from_value(value).map(Self::Gpt2),
            "t5" | "mt5" => T5Config::from_value(value).map(Self::T5),
            other if DecoderConfig::model_types().any(|known| known == other) => {
                DecoderConfig::from_value(value).map(Self::Decoder)
            }
            other if EncoderConfig::model_types().any(|known| known == other) => {
                EncoderConfig::from_value(value).map(Self::Encoder)
            }
            other => {
                let (closest, code) = (value.as_object().and_then(DecoderConfig::closest), value.get("auto_map"));
                let code = if code.is_some() { "; the code that its auto_map names is never run" } else { "" };
                let closest = closest.map_or_else(String::new, |(family, differing)| match differing.as_slice() {
                    [] => format!("; its keys are those of `{family}`"),
                    keys => format!("; closest to `{family}`, which does not have {}", keys.join(", ")),
                });
                Err(keys::bad("model_type", format!("is `{other}`{closest}{code}; supported: {}", known())))
            }
        }
    }

    /// The format of the quantized weights that a config.json announces, `None` if they are not quantized.
    pub fn quantization(text: &str) -> Option<String> {
        let value = text_part(serde_json::from_str(text).ok()?);
        quantization(&value).map(str::to_owned)
    }

    /// Whether a config.json announces weights that bitsandbytes quantized.
    pub fn has_codes_of_bitsandbytes(text: &str) -> bool {
        Self::quantization(text).is_some_and(|method| method == BITSANDBYTES)
    }

    /// The text of a config.json without the format of its weights, for weights that were decoded. Errors: it is not an
    /// object.
    pub fn without_quantization(text: &str) -> Result<String, GraphError> {
        let mut value: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(text).map_err(|e| keys::bad("(file)", format!("is not a JSON object: {e}")))?;
        value.remove(QUANTIZATION);
        if let Some(serde_json::Value::Object(part)) = value.get_mut("text_config") {
            part.remove(QUANTIZATION);
        }
        Ok(serde_json::to_string_pretty(&value).expect("plain data") + "\n")
    }

    /// The text of a config.json for weights in which the output head does not have the weight of the embedding; `None` if the
    /// family has no such head. Errors: `BadConfig`.
    pub fn with_own_head(text: &str) -> Result<Option<String>, GraphError> {
        let mut value: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(text).map_err(|e| keys::bad("(file)", format!("is not a JSON object: {e}")))?;
        if let Self::T5(config) = Self::from_json(text)? {
            // Without this key the scale depends on whether the head is tied.
            value.insert("scale_decoder_outputs".to_owned(), config.scale_decoder_outputs.into());
        }
        value.insert(TIED.to_owned(), false.into());
        if let Some(serde_json::Value::Object(part)) = value.get_mut("text_config") {
            part.insert(TIED.to_owned(), false.into());
        }
        let text = serde_json::to_string_pretty(&value).expect("plain data") + "\n";
        let has_head = |model: Self| match model.describe() {
            Description::Decoder(decoder) => decoder.head.is_some(),
            Description::EncoderDecoder(model) => model.head.is_some(),
            Description::Encoder(_) => false,
        };
        Ok(Self::from_json(&text).is_ok_and(has_head).then_some(text))
    }

    /// The `model_type` in the text of a config.json that also describes parts for images or sound.
    pub fn multimodal_type(text: &str) -> Option<String> {
        let value: serde_json::Value = serde_json::from_str(text).ok()?;
        value.get("text_config")?.get("model_type")?;
        Some(value["model_type"].as_str().unwrap_or("multimodal model").to_owned())
    }

    /// The sizes that the config.json lacked, with the defaults that apply.
    pub fn assumed_sizes(&self) -> Vec<(&str, &serde_json::Value)> {
        match self {
            Self::Decoder(config) => config.assumed_sizes(),
            Self::Encoder(config) => config.assumed_sizes(),
            Self::Gpt2(_) | Self::T5(_) => vec![],
        }
    }

    /// Whether a model is of the same family, so that one can represent the other.
    pub fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// The presets of this model's family, the largest first.
    pub fn presets_like(&self) -> Vec<(&'static str, Self)> {
        let presets = Self::preset_names().into_iter().filter_map(|name| Some((name, Self::find_preset(name)?)));
        let mut like = presets.filter(|(_, preset)| self.is_like(preset)).collect::<Vec<_>>();
        like.sort_by_key(|(_, preset)| std::cmp::Reverse(preset.parameters()));
        like
    }

    /// A config.json for `transformers`.
    pub fn to_json(&self) -> String {
        with_config!(self, config => config.to_json())
    }

    /// The names of all parameters, in the order of their declaration.
    pub fn parameter_names(&self) -> Vec<String> {
        let mut graph = Graph::default();
        self.declare(&mut graph);
        graph.parameters.iter().map(|p| graph[p.tensor].name.to_string()).collect()
    }

    /// Errors: `BadConfig` with the key whose value is impossible.
    pub fn validate(&self) -> Result<(), GraphError> {
        with_config!(self, config => config.validate())
    }

    /// The model's description. If [`Self::validate`] fails, sizes may be zero and blocks may be missing.
    pub fn describe(&self) -> Description {
        with_config!(self, config => config.describe())
    }

    /// The `model_type` of the config.json, such as `qwen2`.
    pub fn model_type(&self) -> &'static str {
        with_config!(self, config => config.model_type())
    }

    /// Number of blocks (layers), of an encoder and a decoder together.
    pub fn blocks(&self) -> usize {
        self.describe().blocks()
    }

    /// Channels of the residual stream.
    pub fn width(&self) -> usize {
        self.describe().width()
    }

    /// The longest sequence that the model has positions for.
    pub fn max_positions(&self) -> usize {
        self.describe().max_positions()
    }

    /// Errors: `TooLong` if `tokens` exceeds the model's positions.
    pub fn check_length(&self, tokens: usize) -> Result<(), GraphError> {
        let positions = self.max_positions();
        if tokens > positions {
            return Err(GraphError::TooLong { name: "the model".into(), seq_len: tokens, positions });
        }
        Ok(())
    }

    /// Changes the number of positions, for models trained from scratch.
    pub fn set_max_positions(&mut self, positions: usize) {
        with_config!(self, config => config.set_max_positions(positions));
    }

    /// Whether positions have parameters. If so, rows of several documents need each token's position.
    pub fn has_position_table(&self) -> bool {
        matches!(self.describe(), Description::Decoder(decoder) if decoder.positions.is_some())
    }

    /// Whether the model is an encoder alone, which computes vectors of texts and continues none.
    pub fn is_encoder(&self) -> bool {
        matches!(self, Self::Encoder(_))
    }

    /// Whether a sample has two sides: a source and a target, or two texts that belong together.
    pub fn takes_pairs(&self) -> bool {
        self.is_encoder() || self.decoder_start().is_some()
    }

    /// Number of token ids.
    pub fn vocab_size(&self) -> usize {
        self.describe().vocab_size()
    }

    /// Changes the vocabulary, for models trained from scratch.
    pub fn set_vocab_size(&mut self, vocab_size: usize) {
        with_config!(self, config => config.set_vocab_size(vocab_size));
    }

    /// Sets every dropout rate of the model. Rates must be in [0, 1).
    pub fn set_dropout(&mut self, rate: f32) {
        with_config!(self, config => config.set_dropout(rate));
    }

    /// The id that a decoder starts with; `None` if the model has no encoder.
    pub fn decoder_start(&self) -> Option<u32> {
        with_config!(self, config => config.decoder_start())
    }

    /// Sets the tokenizer's padding and end ids, for models trained from scratch.
    pub fn set_special_tokens(&mut self, pad: u32, end: u32) {
        with_config!(self, config => config.set_special_tokens(pad, end));
    }

    /// Whether the head is tied only if the weights contain no other head: `transformers` 5 writes such files for T5
    /// models with an untied head.
    pub fn leaves_head_to_weights(&self) -> bool {
        with_config!(self, config => config.leaves_head_to_weights())
    }

    /// Gives such a model an untied head.
    pub fn untie_head(&mut self) {
        with_config!(self, config => config.untie_head());
    }

    /// An upper bound of the elements per token of any activation of the forward or backward pass, to reject sizes that
    /// would overflow.
    pub fn elements_per_token(&self) -> u128 {
        match self.describe() {
            Description::Decoder(decoder) => decoder.elements_per_token(),
            Description::EncoderDecoder(model) => model.elements_per_token(),
            Description::Encoder(encoder) => encoder.elements_per_token(),
        }
    }

    /// Number of parameters, computed without a graph, to reject sizes and to order models.
    pub fn parameters(&self) -> u128 {
        match self.describe() {
            Description::Decoder(decoder) => decoder.parameters(),
            Description::EncoderDecoder(model) => model.parameters(),
            Description::Encoder(encoder) => encoder.parameters(),
        }
    }

    /// Declares the parameters.
    pub fn declare(&self, graph: &mut Graph) -> Weights {
        match self.describe() {
            Description::Decoder(decoder) => Weights::Decoder(DecoderWeights::declare(graph, decoder)),
            Description::EncoderDecoder(model) => Weights::EncoderDecoder(EncoderDecoderWeights::declare(graph, model)),
            Description::Encoder(encoder) => Weights::Encoder(EncoderWeights::declare(graph, encoder)),
        }
    }

    /// Shapes of the caches for `rows` samples of `positions` tokens and `source` tokens of a source.
    pub fn cache_shapes(&self, rows: usize, positions: usize, source: usize) -> CacheShapes {
        match self.describe() {
            Description::Decoder(model) => decoder::cache_shapes(&model, rows, positions),
            Description::EncoderDecoder(model) => encoder_decoder::cache_shapes(&model, rows, positions, source),
            Description::Encoder(_) => CacheShapes { own: vec![], source: vec![] },
        }
    }
}

/// The format of quantized weights.
fn quantization(config: &serde_json::Value) -> Option<&str> {
    let found = config.get(QUANTIZATION).filter(|found| !found.is_null())?;
    Some(found.get("quant_method").and_then(serde_json::Value::as_str).unwrap_or("quantized"))
}

/// The key of a config.json with the format of quantized weights.
const QUANTIZATION: &str = "quantization_config";

/// The format of weights that bitsandbytes quantized, as a config.json names it.
const BITSANDBYTES: &str = "bitsandbytes";

/// Whether a family's weights are read in this format: the published files of gpt-oss have no other than MXFP4, and
/// bitsandbytes transposes the weights of GPT-2.
fn is_read_quantized(config: &serde_json::Value, method: &str) -> bool {
    let is_of = |family: &str| config.get("model_type").is_some_and(|found| found == family);
    match method {
        "mxfp4" => is_of("gpt_oss"),
        BITSANDBYTES => !is_of("gpt2"),
        _ => false,
    }
}

/// The keys of the text model of a config.json that also describes parts for images or sound; otherwise all keys.
fn text_part(mut value: serde_json::Value) -> serde_json::Value {
    let of_text = value.get_mut("text_config").filter(|part| part.get("model_type").is_some()).map(|part| part.take());
    let Some(mut text) = of_text else { return value };
    for key in [TIED, QUANTIZATION, "auto_map"] {
        if text.get(key).is_none_or(serde_json::Value::is_null) && !value[key].is_null() {
            text[key] = value[key].take();
        }
    }
    text
}

/// A model's parameters in a graph.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "there is one for each graph")]
pub enum Weights {
    /// Parameters of a decoder.
    Decoder(DecoderWeights),
    /// Parameters of an encoder and a decoder.
    EncoderDecoder(EncoderDecoderWeights),
    /// Parameters of an encoder.
    Encoder(EncoderWeights),
}

/// The key of a config.json for whether the output head has the weight of the embedding.
const TIED: &str = "tie_word_embeddings";

/// Why an encoder is not asked for what a model that continues text has.
pub(crate) const NO_HEAD: &str = "an encoder has no output head";

impl Weights {
    /// The head's weight (V, C). Panics if the model is an encoder.
    pub fn head(&self) -> TensorId {
        match self {
            Self::Decoder(weights) => weights.head,
            Self::EncoderDecoder(weights) => weights.head,
            Self::Encoder(_) => panic!("{NO_HEAD}"),
        }
    }

    /// Coefficient of the loss on the balance of experts, if training adds it.
    pub fn balance(&self) -> Option<f32> {
        match self {
            Self::Decoder(weights) => weights.balance(),
            Self::EncoderDecoder(_) | Self::Encoder(_) => None,
        }
    }

    /// Soft limit of the logits.
    pub fn logit_cap(&self) -> Option<f32> {
        match self {
            Self::Decoder(weights) => weights.logit_cap(),
            Self::EncoderDecoder(_) | Self::Encoder(_) => None,
        }
    }

    /// Appends the forward pass up to the input of the output head: (B, T, C). The caches are empty except in
    /// [`Mode::Cached`]. Panics if the model is an encoder.
    pub fn forward(
        &self,
        builder: &mut ProgramBuilder,
        inputs: &Inputs,
        mode: Mode,
        caches: &Caches,
    ) -> Result<TensorId, GraphError> {
        match self {
            Self::Decoder(weights) => weights.forward(builder, inputs, mode, caches),
            Self::EncoderDecoder(weights) => weights.forward(builder, inputs, mode, caches),
            Self::Encoder(_) => panic!("{NO_HEAD}"),
        }
    }

    /// Appends the encoder, if there is one; it fills the caches of the source.
    pub fn cache_source(
        &self,
        builder: &mut ProgramBuilder,
        inputs: &Inputs,
        caches: &Caches,
    ) -> Result<(), GraphError> {
        match self {
            Self::Decoder(_) | Self::Encoder(_) => Ok(()),
            Self::EncoderDecoder(weights) => weights.cache_source(builder, inputs, caches),
        }
    }
}
