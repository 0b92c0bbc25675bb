//! The decoders that share Llama's keys, and encoders. A file per family reads the keys of a config.json and returns a
//! description; the file that a model is written with has the same keys, with their defaults filled in.
//!
//! To add a family: its file with an [`Architecture`], its line in [`ARCHITECTURES`], its golden values.

mod bert;
mod encoder_presets;
mod encoder_sizes;
mod gemma;
mod gpt_oss;
mod granite;
mod llama;
mod mistral;
mod modernbert;
mod moe;
mod olmo;
mod phi;
mod presets;
mod qwen;
mod reader;
mod rope;
mod sizes;
mod smollm;

use super::Family;
use super::description::{Decoder, Description, Encoder};
use super::keys::{bad, to_json};
use crate::GraphError;
use reader::Reader;
use serde_json::{Map, Value, json};

/// A class of `transformers`, and how its config.json is read.
struct Architecture<D: 'static = Decoder> {
    /// The `model_type` of its config.json.
    model_type: &'static str,
    /// The name of the class.
    class: &'static str,
    /// The values of `transformers` for keys that a file may omit: an object.
    defaults: fn() -> Value,
    /// Reads the keys. Errors: `BadConfig` with the key.
    read: fn(&mut Reader<'_>) -> Result<D, GraphError>,
}

/// A kind of model that several families describe.
trait Described: Clone + 'static {
    /// The families.
    fn architectures() -> &'static [&'static Architecture<Self>];

    /// Names of the presets, the smallest of each family first.
    fn preset_names() -> Vec<&'static str>;

    /// The preset of this name.
    fn preset(name: &str) -> Option<FamilyConfig<Self>>;

    fn described(self) -> Description;

    fn set_max_positions(&mut self, positions: usize);

    fn set_vocab_size(&mut self, vocab_size: usize);

    fn set_dropout(&mut self, rate: f32);
}

const ARCHITECTURES: &[&Architecture] = &[
    &llama::LLAMA,
    &mistral::MISTRAL,
    &mistral::MINISTRAL,
    &qwen::QWEN2,
    &qwen::QWEN3,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &phi::PHI3,
    &smollm::SMOLLM3,
    &olmo::OLMO2,
    &olmo::OLMO3,
    &granite::GRANITE,
    &moe::QWEN3_MOE,
    &moe::OLMOE,
    &moe::MIXTRAL,
    &gpt_oss::GPT_OSS,
];

const ENCODERS: &[&Architecture<Encoder>] = &[&bert::BERT, &modernbert::MODERNBERT];

/// The keys that determine the number of parameters.
const SIZES: [&str; 9] = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "type_vocab_size",
];

/// The keys of dropout rates.
const DROPOUTS: [&str; 7] = [
    "attention_dropout",
    "attention_probs_dropout_prob",
    "embd_pdrop",
    "embedding_dropout",
    "hidden_dropout_prob",
    "mlp_dropout",
    "resid_pdrop",
];

/// The configuration of a model of one of these families.
#[derive(Clone)]
pub struct FamilyConfig<D: 'static> {
    architecture: &'static Architecture<D>,
    /// The keys that the family reads, with their defaults filled in.
    keys: Map<String, Value>,
    description: D,
    assumed: Vec<String>,
}

/// The configuration of a decoder.
pub type DecoderConfig = FamilyConfig<Decoder>;

/// The configuration of an encoder.
pub type EncoderConfig = FamilyConfig<Encoder>;

impl<D> std::fmt::Debug for FamilyConfig<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct(self.architecture.class).field("keys", &self.keys).finish_non_exhaustive()
    }
}

impl<D> PartialEq for FamilyConfig<D> {
    fn eq(&self, other: &Self) -> bool {
        (self.architecture.model_type, &self.keys) == (other.architecture.model_type, &other.keys)
    }
}

#[expect(private_bounds, reason = "only this file's descriptions have families")]
impl<D: Described> FamilyConfig<D> {
    fn read(architecture: &'static Architecture<D>, file: &Map<String, Value>) -> Result<Self, GraphError> {
        let mut keys = Reader::new(file, (architecture.defaults)());
        let description = (architecture.read)(&mut keys)?;
        if let Some((key, value)) = keys.not_understood().first() {
            let model_type = architecture.model_type;
            return Err(bad(key, format!("is {value}, which `{model_type}` models do not support here")));
        }
        let (keys, assumed) = (keys.read, keys.assumed);
        Ok(Self { architecture, keys, description, assumed })
    }

    /// The `model_type`s of all families.
    pub(super) fn model_types() -> impl Iterator<Item = &'static str> {
        D::architectures().iter().map(|architecture| architecture.model_type)
    }

    /// What the model computes.
    pub(super) fn describe(&self) -> Description {
        self.description.clone().described()
    }

    /// The sizes that the file lacks, with the defaults of `transformers` that apply.
    pub(super) fn assumed_sizes(&self) -> Vec<(&str, &Value)> {
        let sizes = self.assumed.iter().filter(|key| SIZES.contains(&key.as_str()));
        sizes.map(|key| (key.as_str(), &self.keys[key])).collect()
    }

    /// The family whose keys are most like those of a file of another architecture, and the keys that it does not
    /// understand.
    pub(super) fn closest(file: &Map<String, Value>) -> Option<(&'static str, Vec<String>)> {
        let tried = D::architectures().iter().filter_map(|architecture| {
            let mut keys = Reader::new(file, (architecture.defaults)());
            (architecture.read)(&mut keys).ok()?;
            let differing = keys.not_understood().into_iter().map(|(key, value)| format!("{key} = {value}"));
            Some((architecture.model_type, differing.collect::<Vec<_>>()))
        });
        tried.min_by_key(|(_, differing)| differing.len())
    }
}

impl<D: Described> Family for FamilyConfig<D> {
    fn preset_names() -> impl Iterator<Item = &'static str> {
        D::preset_names().into_iter()
    }

    fn preset(name: &str) -> Option<Self> {
        D::preset(name)
    }

    fn from_value(value: Value) -> Result<Self, GraphError> {
        let file = value.as_object().ok_or_else(|| bad("(file)", "is not an object"))?;
        let model_type = value["model_type"].as_str().unwrap_or_default();
        let architecture = D::architectures().iter().find(|architecture| architecture.model_type == model_type);
        Self::read(architecture.ok_or_else(|| bad("model_type", format!("is `{model_type}`")))?, file)
    }

    fn to_json(&self) -> String {
        let Architecture { model_type, class, .. } = self.architecture;
        to_json(&self.keys, &json!({"model_type": model_type, "architectures": [class], "torch_dtype": "float32"}))
    }

    fn validate(&self) -> Result<(), GraphError> {
        Self::read(self.architecture, &self.keys).map(drop)
    }

    fn model_type(&self) -> &'static str {
        self.architecture.model_type
    }

    fn set_max_positions(&mut self, positions: usize) {
        self.keys.insert("max_position_embeddings".into(), json!(positions));
        self.description.set_max_positions(positions);
    }

    fn set_vocab_size(&mut self, vocab_size: usize) {
        self.keys.insert("vocab_size".into(), json!(vocab_size));
        self.description.set_vocab_size(vocab_size);
    }

    fn set_dropout(&mut self, rate: f32) {
        for key in DROPOUTS {
            if let Some(value) = self.keys.get_mut(key) {
                *value = json!(rate);
            }
        }
        self.description.set_dropout(rate);
    }
}

impl Described for Decoder {
    fn architectures() -> &'static [&'static Architecture] {
        ARCHITECTURES
    }

    fn preset_names() -> Vec<&'static str> {
        presets::names().collect()
    }

    fn preset(name: &str) -> Option<DecoderConfig> {
        presets::find(name)
    }

    fn described(self) -> Description {
        Description::Decoder(self)
    }

    fn set_max_positions(&mut self, positions: usize) {
        self.max_positions = positions;
    }

    fn set_vocab_size(&mut self, vocab_size: usize) {
        self.vocab_size = vocab_size;
        for table in [Some(&mut self.tokens), self.head.as_mut()].into_iter().flatten() {
            table.rows = vocab_size;
        }
    }

    fn set_dropout(&mut self, rate: f32) {
        for block in &mut self.blocks {
            block.attention.dropout = rate;
            block.residual_dropout = block.residual_dropout.map(|_| rate);
        }
        self.embedding_dropout = self.embedding_dropout.map(|_| rate);
    }
}

impl Described for Encoder {
    fn architectures() -> &'static [&'static Architecture<Self>] {
        ENCODERS
    }

    fn preset_names() -> Vec<&'static str> {
        encoder_presets::names().collect()
    }

    fn preset(name: &str) -> Option<EncoderConfig> {
        encoder_presets::find(name)
    }

    fn described(self) -> Description {
        Description::Encoder(self)
    }

    fn set_max_positions(&mut self, positions: usize) {
        self.max_positions = positions;
        if let Some(table) = &mut self.positions {
            table.rows = positions;
        }
    }

    fn set_vocab_size(&mut self, vocab_size: usize) {
        (self.vocab_size, self.tokens.rows) = (vocab_size, vocab_size);
    }

    fn set_dropout(&mut self, rate: f32) {
        for block in &mut self.blocks {
            block.attention.dropout = rate;
            for dropout in
                [&mut block.attention_dropout, &mut block.feed_forward_dropout, &mut block.feed_forward.dropout]
            {
                *dropout = dropout.map(|_| rate);
            }
        }
        self.embedding_dropout = rate;
    }
}
