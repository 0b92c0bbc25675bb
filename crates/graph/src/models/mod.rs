//! The model families. A family reads its config.json and describes what the model computes; a [`Description`] becomes
//! parameters and forward passes of a graph, the same for training, evaluation and sampling. Presets are data.
//!
//! ```text
//!   gpt2, llama, t5            each family's keys (config.rs) and its description
//!   description                what a model computes and what its parameters are called
//!   decoder, encoder_decoder   a description in a graph, of the parts in parts.rs
//! ```
//!
//! To add a family: its config with a [`Family`] and `describe`, and its line in `families!` below.

mod decoder;
pub mod description;
mod encoder_decoder;
mod gpt2;
mod hub;
mod keys;
mod llama;
mod parts;
mod t5;

pub use description::Description;
pub use gpt2::Gpt2Config;
pub use llama::{LlamaConfig, Variant};
pub use t5::{FeedForwardProjection, T5Config};

use crate::{Graph, GraphError, ProgramBuilder, TensorId};
use decoder::DecoderWeights;
use encoder_decoder::EncoderDecoderWeights;
use plimsoll_units::spelling;

/// What the forward pass is run for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// With dropout; each draw drops others.
    Train {
        /// Number of the draw.
        draw: u32,
    },
    /// Without dropout.
    Evaluate,
    /// A few tokens after earlier ones, whose keys and values are kept.
    Cached,
}

/// What a forward pass reads in addition to the parameters; all integers.
#[derive(Debug, Clone, Copy)]
pub struct Inputs {
    /// Token ids: (B, T); the source's, (B, S), if there is an encoder.
    pub tokens: TensorId,
    /// Positions of the tokens (B, T), if they don't count from the row's first: rows of several documents.
    pub positions: Option<TensorId>,
    /// Segments of the tokens: a token attends to its own segment only. Sources have 1 for tokens and 0 for padding.
    pub segments: Option<TensorId>,
    /// Token ids (B, T) of the decoder, and the segments of the source that they attend to.
    pub decoder: Option<[TensorId; 2]>,
}

/// Keys and values that sampling keeps, a pair for each block that attends.
#[derive(Debug, Clone, Default)]
pub struct Caches {
    /// Of the tokens written so far: (B, P, K·D) each.
    pub own: Vec<[TensorId; 2]>,
    /// Of the source: (B, S, K·D) each.
    pub source: Vec<[TensorId; 2]>,
}

/// The shapes of [`Caches`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheShapes {
    /// Of the tokens written so far.
    pub own: Vec<[Vec<usize>; 2]>,
    /// Of the source.
    pub source: Vec<[Vec<usize>; 2]>,
}

/// What a family's configuration does. What the model computes is in its [`Description`].
trait Family: Sized {
    /// Names of the presets, the smaller first.
    fn preset_names() -> impl Iterator<Item = &'static str>;

    /// The preset of this name.
    fn preset(name: &str) -> Option<Self>;

    /// Reads a config.json; refuses values that ask for a variant that is not implemented. Errors: `BadConfig`.
    fn from_value(value: serde_json::Value) -> Result<Self, GraphError>;

    /// The config.json that `transformers` reads.
    fn to_json(&self) -> String;

    /// Errors: `BadConfig` naming the key whose value is impossible.
    fn validate(&self) -> Result<(), GraphError>;

    /// The `model_type` of the config.json.
    fn model_type(&self) -> &'static str;

    /// Changes the number of positions; for models that start from scratch.
    fn set_max_positions(&mut self, positions: usize);

    /// Changes the vocabulary; for models that start from scratch.
    fn set_vocab_size(&mut self, vocab_size: usize);

    /// Sets every dropout rate of the model, which must be in [0, 1).
    fn set_dropout(&mut self, rate: f32);

    /// The id that a decoder begins with; `None` if there is no encoder.
    fn decoder_start(&self) -> Option<u32> {
        None
    }

    /// Sets the ids that the tokenizer pads and ends with; for models that start from scratch.
    fn set_special_tokens(&mut self, _pad: u32, _end: u32) {}

    /// Whether the head is the embedding only if the weights have no other: what `transformers` 5 writes for T5 models with
    /// a head of their own.
    fn leaves_head_to_weights(&self) -> bool {
        false
    }

    /// Gives such a model a head of its own.
    fn untie_head(&mut self) {}
}

macro_rules! families {
    ($($name:ident($config:ty): $doc:literal, [$($model_type:literal),+]);+ $(;)?) => {
        /// A model of any family.
        #[derive(Debug, Clone, PartialEq)]
        pub enum ModelConfig {
            $(#[doc = $doc] $name($config)),+
        }

        /// Does the same with the configuration of any family.
        macro_rules! with_config {
            ($model:expr, $it:ident => $value:expr) => {
                match $model {
                    $(ModelConfig::$name($it) => $value),+
                }
            };
        }

        impl ModelConfig {
            /// Names of all presets, family by family, the smaller first.
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

            /// The `model_type`s that are read.
            const MODEL_TYPES: &[&str] = &[$($($model_type),+),+];

            fn of_type(model_type: &str, value: serde_json::Value) -> Option<Result<Self, GraphError>> {
                match model_type {
                    $($($model_type)|+ => Some(<$config as Family>::from_value(value).map(Self::$name)),)+
                    _ => None,
                }
            }
        }
    };
}

families! {
    Gpt2(Gpt2Config): "GPT-2 and what is built like it.", ["gpt2"];
    Llama(LlamaConfig): "Llama, Mistral, Qwen2.", ["llama", "mistral", "qwen2"];
    T5(T5Config): "T5, v1.1 and FLAN too.", ["t5"];
}

impl ModelConfig {
    /// The preset of this name, or of the weights of this name on the Hugging Face hub; hyphens and underscores are the
    /// same. Errors: `UnknownModel` with suggestions.
    pub fn preset(name: &str) -> Result<Self, GraphError> {
        Self::preset_name(name).and_then(|name| Self::find_preset(&name)).ok_or_else(|| {
            let suggestions = Self::presets_near(name);
            GraphError::UnknownModel { name: name.to_owned(), suggestions }
        })
    }

    /// The name of the preset that [`Self::preset`] finds.
    pub fn preset_name(name: &str) -> Option<String> {
        let wanted = name.to_ascii_lowercase().replace('_', "-");
        let on_hub = hub::preset(name).map(str::to_owned);
        on_hub.or_else(|| Self::find_preset(&wanted).map(|_| wanted))
    }

    /// The names on the Hugging Face hub of the weights with a preset's sizes, the preferred one first; empty for our own presets.
    pub fn hub_names(preset: &str) -> &'static [&'static str] {
        hub::names(preset)
    }

    /// Whether a name is a preset's or that of published weights; else [`Self::preset_name`] goes by the parts of the name.
    pub fn is_published_name(name: &str) -> bool {
        hub::is_published(name)
    }

    /// Whether the weights of this name on the hub are quantized in a way that trainers keep, such as GPTQ.
    pub fn is_quantized_name(name: &str) -> bool {
        hub::is_quantized(name)
    }

    /// Presets whose names are nearest to one that none has: of another version of a family (`qwen2-7b` for
    /// `qwen3-8b`) only if one letter differs.
    fn presets_near(name: &str) -> Vec<String> {
        let wanted = name.rsplit('/').next().unwrap_or_default().replace('_', "-");
        let version = |name: &str| name.split('-').next().unwrap_or_default().replace(char::is_alphabetic, "");
        let is_of_version = |known: &&str| {
            version(known) == version(&wanted) || spelling::edits(&wanted, known).is_some_and(|edits| edits <= 1)
        };
        let known = Self::preset_names().into_iter().filter(is_of_version);
        spelling::nearest_of(&wanted, known.map(|known| (known, known.to_owned())))
    }

    /// Reads a Hugging Face config.json. Keys that change nothing here are ignored; a key that asks for what we
    /// lack is refused by name. Errors: `BadConfig`.
    pub fn from_json(text: &str) -> Result<Self, GraphError> {
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|e| keys::bad("(file)", format!("is not valid JSON: {e}")))?;
        let known = Self::MODEL_TYPES.join(", ");
        let Some(model_type) = value.get("model_type").and_then(|v| v.as_str()).map(str::to_owned) else {
            return Err(keys::bad("model_type", format!("is missing; supported: {known}")));
        };
        Self::of_type(&model_type, value)
            .unwrap_or_else(|| Err(keys::bad("model_type", format!("is `{model_type}`; supported: {known}"))))
    }

    /// Whether a model is of the same family, so that one may stand for the other.
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

    /// The config.json that `transformers` reads.
    pub fn to_json(&self) -> String {
        with_config!(self, config => config.to_json())
    }

    /// The names of all parameters, in the order of their declaration.
    pub fn parameter_names(&self) -> Vec<String> {
        let mut graph = Graph::default();
        self.declare(&mut graph);
        graph.parameters.iter().map(|p| graph[p.tensor].name.to_string()).collect()
    }

    /// Errors: `BadConfig` naming the key whose value is impossible.
    pub fn validate(&self) -> Result<(), GraphError> {
        with_config!(self, config => config.validate())
    }

    /// What the model computes. If [`Self::validate`] refuses the configuration, sizes may be zero and blocks are left out.
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

    /// Errors: `TooLong` if the model has fewer positions than tokens.
    pub fn check_length(&self, tokens: usize) -> Result<(), GraphError> {
        let positions = self.max_positions();
        if tokens > positions {
            return Err(GraphError::TooLong { name: "the model".into(), seq_len: tokens, positions });
        }
        Ok(())
    }

    /// Changes the number of positions; for models that start from scratch.
    pub fn set_max_positions(&mut self, positions: usize) {
        with_config!(self, config => config.set_max_positions(positions));
    }

    /// Whether positions have parameters, so that rows of several documents need each token's position.
    pub fn has_position_table(&self) -> bool {
        matches!(self.describe(), Description::Decoder(decoder) if decoder.positions.is_some())
    }

    /// Number of token ids.
    pub fn vocab_size(&self) -> usize {
        self.describe().vocab_size()
    }

    /// Changes the vocabulary; for models that start from scratch.
    pub fn set_vocab_size(&mut self, vocab_size: usize) {
        with_config!(self, config => config.set_vocab_size(vocab_size));
    }

    /// Sets every dropout rate of the model. Rates must be in [0, 1).
    pub fn set_dropout(&mut self, rate: f32) {
        with_config!(self, config => config.set_dropout(rate));
    }

    /// The id that a decoder begins with; `None` if there is no encoder.
    pub fn decoder_start(&self) -> Option<u32> {
        with_config!(self, config => config.decoder_start())
    }

    /// Says which ids the tokenizer pads and ends with; for models that start from scratch.
    pub fn set_special_tokens(&mut self, pad: u32, end: u32) {
        with_config!(self, config => config.set_special_tokens(pad, end));
    }

    /// Whether the head is the embedding only if the weights have no other: what `transformers` 5 writes for T5 models with
    /// a head of their own.
    pub fn leaves_head_to_weights(&self) -> bool {
        with_config!(self, config => config.leaves_head_to_weights())
    }

    /// Gives such a model a head of its own.
    pub fn untie_head(&mut self) {
        with_config!(self, config => config.untie_head());
    }

    /// More elements than any activation of the forward or backward pass holds for one token. Only for refusing sizes that
    /// can't be counted.
    pub fn elements_per_token(&self) -> u128 {
        match self.describe() {
            Description::Decoder(decoder) => decoder.elements_per_token(),
            Description::EncoderDecoder(model) => model.elements_per_token(),
        }
    }

    /// Number of parameters, counted without a graph: for refusing sizes and for ordering models.
    pub fn parameters(&self) -> u128 {
        match self.describe() {
            Description::Decoder(decoder) => decoder.parameters(),
            Description::EncoderDecoder(model) => model.parameters(),
        }
    }

    /// Declares the parameters.
    pub fn declare(&self, graph: &mut Graph) -> Weights {
        match self.describe() {
            Description::Decoder(decoder) => Weights::Decoder(DecoderWeights::declare(graph, decoder)),
            Description::EncoderDecoder(model) => Weights::EncoderDecoder(EncoderDecoderWeights::declare(graph, model)),
        }
    }

    /// Shapes of the caches of `rows` samples, for `positions` tokens and `source` tokens of a source.
    pub fn cache_shapes(&self, rows: usize, positions: usize, source: usize) -> CacheShapes {
        match self.describe() {
            Description::Decoder(model) => decoder::cache_shapes(&model, rows, positions),
            Description::EncoderDecoder(model) => encoder_decoder::cache_shapes(&model, rows, positions, source),
        }
    }
}

/// A model's parameters in a graph.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "there is one for each graph")]
pub enum Weights {
    /// Of a decoder.
    Decoder(DecoderWeights),
    /// Of an encoder and a decoder.
    EncoderDecoder(EncoderDecoderWeights),
}

impl Weights {
    /// The head's weight (V, C).
    pub fn head(&self) -> TensorId {
        match self {
            Self::Decoder(weights) => weights.head,
            Self::EncoderDecoder(weights) => weights.head,
        }
    }

    /// Appends the forward pass, up to what the head multiplies: (B, T, C). The caches are empty except in
    /// [`Mode::Cached`].
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
        }
    }

    /// Appends the encoder, if there is one, which fills the caches of the source.
    pub fn cache_source(
        &self,
        builder: &mut ProgramBuilder,
        inputs: &Inputs,
        caches: &Caches,
    ) -> Result<(), GraphError> {
        match self {
            Self::Decoder(_) => Ok(()),
            Self::EncoderDecoder(weights) => weights.cache_source(builder, inputs, caches),
        }
    }
}
