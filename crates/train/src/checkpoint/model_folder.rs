//! The files that make a checkpoint a model folder, in addition to its tensors.

use super::pooling::{POOLING_KEY, pooling_name};
use plimsoll_data::{ModelFile, Tokenizer};
use plimsoll_graph::models::ModelConfig;
use plimsoll_graph::ops::Pooling;
use serde_json::{Map, Value, json};

/// The files of a model folder other than weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFolder {
    /// The text of config.json.
    pub config_json: String,
    /// The text of adapter_config.json, if only adapters are trained.
    pub adapter_json: Option<String>,
    /// The tokenizer's files and generation_config.json.
    pub files: Vec<ModelFile>,
}

/// The keys of a config.json for the tokens that begin, end and pad a text.
const TOKEN_IDS: [&str; 3] = ["bos_token_id", "eos_token_id", "pad_token_id"];

/// The keys of an encoder's config.json for the tokens that begin and end a text.
const ENCODER_TOKEN_IDS: [&str; 2] = ["cls_token_id", "sep_token_id"];

impl ModelFolder {
    /// The files for a model and its tokenizer. `published` is the config.json of the initial weights; its ids for the
    /// beginning and end of a text are kept. `pooling`: how an encoder's vectors are made.
    pub fn new(
        model: &ModelConfig,
        tokenizer: &Tokenizer,
        published: &Map<String, Value>,
        pooling: Option<Pooling>,
        files: Vec<ModelFile>,
    ) -> Self {
        let mut config: Map<String, Value> =
            serde_json::from_str(&model.to_json()).expect("a configuration is an object");
        let own = [tokenizer.begin_token(), tokenizer.end_token(), tokenizer.pad_token()];
        let [begin, end, _] = own;
        let of_encoder = ENCODER_TOKEN_IDS.into_iter().zip([begin, end]).filter(|_| pooling.is_some());
        for (key, id) in TOKEN_IDS.into_iter().zip(own).chain(of_encoder) {
            // Without a key, `transformers` uses the id of the family's first model, which may be outside the
            // vocabulary.
            let id = published.get(key).cloned().unwrap_or_else(|| json!(id));
            config.entry(key).or_insert(id);
        }
        if let Some(pooling) = pooling {
            config.insert(POOLING_KEY.to_owned(), json!(pooling_name(pooling)));
        }
        let config_json = serde_json::to_string_pretty(&config).expect("plain data");
        Self { config_json, adapter_json: None, files }
    }
}
