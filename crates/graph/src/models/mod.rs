//! The model families. One file each: its configuration, its parameters and its forward pass, written once for
//! training, evaluation and sampling. Presets are data.
//!
//! To add a family: its file, and an arm in [`ModelConfig`].

mod gpt2;

pub use gpt2::Gpt2Config;

use crate::{Graph, GraphError, ProgramBuilder, TensorId};
use serde::{Deserialize, Serialize};

/// What the forward pass is run for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// With dropout.
    Train,
    /// Without dropout.
    Evaluate,
    /// A few tokens after earlier ones, whose keys and values are kept.
    Cached,
}

/// A model of any family.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "model_type", rename_all = "snake_case")]
pub enum ModelConfig {
    /// GPT-2 and what is built like it.
    Gpt2(Gpt2Config),
}

/// A model's parameters in a graph, as its forward pass needs them.
#[derive(Debug, Clone)]
pub enum Declared {
    /// GPT-2's.
    Gpt2(gpt2::Parameters),
}

impl ModelConfig {
    /// Names of all presets.
    pub fn preset_names() -> Vec<&'static str> {
        gpt2::PRESETS.iter().map(|p| p.name).collect()
    }

    /// The preset of this name; hyphens and underscores are the same. Errors: `UnknownModel` with a suggestion.
    pub fn preset(name: &str) -> Result<Self, GraphError> {
        let wanted = name.to_ascii_lowercase().replace('_', "-");
        if let Some(preset) = gpt2::PRESETS.iter().find(|p| p.name == wanted) {
            return Ok(Self::Gpt2(preset.config()));
        }
        let near = Self::preset_names()
            .into_iter()
            .map(|candidate| (strsim::damerau_levenshtein(candidate, &wanted), candidate))
            .min()
            .filter(|(distance, _)| *distance <= 3);
        Err(GraphError::UnknownModel { name: name.to_owned(), suggestion: near.map(|(_, s)| s.to_owned()) })
    }

    /// Reads a Hugging Face config.json. Keys that change nothing here are passed over; a key that asks for what we
    /// lack is refused by name. Errors: `BadConfig`.
    pub fn from_json(text: &str) -> Result<Self, GraphError> {
        let bad = |key: &str, problem: String| GraphError::BadConfig { key: key.to_owned(), problem };
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|e| bad("(file)", format!("is not valid JSON: {e}")))?;
        match value.get("model_type").and_then(|v| v.as_str()) {
            Some("gpt2") => {}
            Some(other) => return Err(bad("model_type", format!("is `{other}`; known here: gpt2"))),
            None => return Err(bad("model_type", "is missing; known here: gpt2".to_owned())),
        }
        let config = Gpt2Config::from_value(value)?;
        Ok(Self::Gpt2(config))
    }

    /// The config.json that `transformers` reads.
    pub fn to_json(&self) -> String {
        let Self::Gpt2(config) = self;
        config.to_json()
    }

    /// Errors: `BadConfig` naming the key whose value is impossible.
    pub fn validate(&self) -> Result<(), GraphError> {
        let Self::Gpt2(config) = self;
        config.validate()
    }

    /// Number of blocks (layers).
    pub fn blocks(&self) -> usize {
        let Self::Gpt2(config) = self;
        config.n_layer
    }

    /// The longest sequence that the model has positions for.
    pub fn max_positions(&self) -> usize {
        let Self::Gpt2(config) = self;
        config.n_positions
    }

    /// Changes the number of positions; for models that start from scratch.
    pub fn set_max_positions(&mut self, positions: usize) {
        let Self::Gpt2(config) = self;
        config.n_positions = positions;
    }

    /// Number of token ids.
    pub fn vocab_size(&self) -> usize {
        let Self::Gpt2(config) = self;
        config.vocab_size
    }

    /// Changes the vocabulary; for models that start from scratch.
    pub fn set_vocab_size(&mut self, vocab_size: usize) {
        let Self::Gpt2(config) = self;
        config.vocab_size = vocab_size;
    }

    /// Sets every dropout rate of the model. Rates must lie in [0, 1).
    pub fn set_dropout(&mut self, rate: f32) {
        let Self::Gpt2(config) = self;
        (config.attn_pdrop, config.embd_pdrop, config.resid_pdrop) = (rate, rate, rate);
    }

    /// More elements than any activation of the forward or backward pass holds for one token; for refusing sizes
    /// that can't be counted, and for nothing else.
    pub fn elements_per_token(&self) -> u128 {
        let Self::Gpt2(config) = self;
        config.widest() * config.n_layer as u128
    }

    /// At least as many parameters as there are; for refusing sizes that can't be counted and for ordering models.
    pub fn parameter_bound(&self) -> u128 {
        let Self::Gpt2(config) = self;
        let (c, tables) = (config.n_embd as u128, (config.vocab_size + config.n_positions) as u128);
        c * (tables + 5 * config.widest() * config.n_layer as u128)
    }

    /// Declares the parameters.
    pub fn declare(&self, graph: &mut Graph) -> Declared {
        let Self::Gpt2(config) = self;
        Declared::Gpt2(config.declare(graph))
    }

    /// Appends the forward pass. tokens: (B, T) integers -> the last hidden states (B, T, C).
    /// `caches` are the key and value caches of each block, in [`Mode::Cached`].
    pub fn forward(
        &self,
        builder: &mut ProgramBuilder,
        parameters: &Declared,
        tokens: TensorId,
        mode: Mode,
        caches: &[[TensorId; 2]],
    ) -> Result<TensorId, GraphError> {
        let (Self::Gpt2(config), Declared::Gpt2(parameters)) = (self, parameters);
        config.forward(builder, parameters, tokens, mode, caches)
    }

    /// Shape of each block's key cache, and of its value cache, for `positions` tokens.
    pub fn cache_shapes(&self, positions: usize) -> Vec<[Vec<usize>; 2]> {
        let Self::Gpt2(config) = self;
        vec![[vec![positions, config.n_embd], vec![positions, config.n_embd]]; config.n_layer]
    }
}

impl Declared {
    /// The head's weight (V, C).
    pub fn head(&self) -> TensorId {
        let Self::Gpt2(parameters) = self;
        parameters.head()
    }
}
