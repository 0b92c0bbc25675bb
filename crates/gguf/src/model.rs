//! A model as a file.

use crate::architecture::Architecture;
use crate::metadata::of_model;
use crate::tensors::Tensors;
use crate::{Contents, FileType, GgufError, TokenizerParts};
use plimsoll_graph::models::ModelConfig;
use plimsoll_train::checkpoint::StoredWeights;
use std::path::Path;

/// llama.cpp's numbers of the ways in which an encoder makes one vector of a text. Source: `enum llama_pooling_type`.
const MEAN: u32 = 1;
const FIRST: u32 = 2;

/// What a model's file has in addition to its weights.
#[derive(Debug, Clone, Default)]
pub struct ModelParts {
    /// A name for people.
    pub name: String,
    /// The tokenizer.
    pub tokenizer: TokenizerParts,
    /// The text of the `1_Pooling/config.json` of sentence-transformers, for an encoder that has one.
    pub pooling: Option<String>,
}

/// The file of a model whose weights are in a folder, or if `averaged` their averages. Reads no weights. Errors: `Unsupported`, `Tokenizer`, `Checkpoint`.
pub fn model(
    model: &ModelConfig,
    folder: &Path,
    averaged: bool,
    parts: &ModelParts,
    file: FileType,
) -> Result<Contents, GgufError> {
    let architecture = Architecture::of(model)?;
    let mut metadata = of_model(&architecture, model, &parts.name, file);
    if let Some(pooling) = parts.pooling.as_deref().and_then(pooling) {
        metadata.put(format!("{}.pooling_type", architecture.name), pooling);
    }
    metadata.0.extend(parts.tokenizer.keys(model.vocab_size())?.0);
    let tensors = Tensors::of(&architecture, &model.describe()).all;
    let named = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice())).collect::<Vec<_>>();
    let encodings = file.encodings(&named);
    let weights = StoredWeights::open(folder, model, averaged)?;
    Ok(Contents { metadata, tensors: tensors.into_iter().zip(encodings).collect(), weights })
}

fn pooling(config: &str) -> Option<u32> {
    let config: serde_json::Value = serde_json::from_str(config).ok()?;
    let modes = [("pooling_mode_mean_tokens", MEAN), ("pooling_mode_cls_token", FIRST)];
    modes.into_iter().find(|(key, _)| config[*key] == true).map(|(_, kind)| kind)
}
