//! Checks the settings that must not change when a run is resumed. Settings that may change from session to session are
//! not checked: learning rates, dropout, levers, the length.

use super::find::damaged;
use super::{ADAPTER_CONFIG_FILE, CONFIG_FILE, CheckpointError, RunState, fingerprint};
use crate::TrainerConfig;
use plimsoll_files::read_text;
use plimsoll_graph::models::ModelConfig;
use plimsoll_plan::Plan;
use plimsoll_units::Bytes;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

/// Longer than any configuration.
const LONGEST_CONFIG: Bytes = Bytes(1 << 20);

/// Whether the checkpoint at `path`, which `verify` accepted, belongs to the run that is being resumed.
/// Errors: `OtherRun`, `OtherModel`, `OtherData`; its configuration can't be read.
pub(crate) fn check_same_run(
    path: &Path,
    state: &RunState,
    data_fingerprint: String,
    plan: &Plan,
    config: &TrainerConfig,
) -> Result<(), CheckpointError> {
    let length = |tokens: Option<usize>| tokens.map_or("none".to_owned(), |n| n.to_string());
    for (what, found, expected) in [
        ("a precision of", state.precision.clone(), config.precision.clone()),
        ("a seed of", state.seed.to_string(), config.seed.to_string()),
        ("a global batch of", state.global_batch.to_string(), plan.global_batch.to_string()),
        ("a sequence length of", state.seq_len.to_string(), plan.seq_len.to_string()),
        ("targets of", length(state.target_len), length(plan.target_len)),
    ] {
        if found != expected {
            return Err(CheckpointError::OtherRun { path: path.to_owned(), what, found, expected });
        }
    }
    check_same_model(path, &config.model)?;
    check_same_adapters(path, config.model_folder.adapter_json.as_deref())?;
    if let Some(weights) = config.base.as_ref().and_then(|base| base.weights.as_ref())
        && state.base != Some(fingerprint(weights)?)
    {
        return Err(CheckpointError::OtherBase { path: path.to_owned(), weights: weights.clone() });
    }
    match state.data_fingerprint == data_fingerprint {
        true => Ok(()),
        false => Err(CheckpointError::OtherData { path: path.to_owned() }),
    }
}

/// Compares all of the adapters, except their dropout and the path of the weights below them, with the checkpoint's own.
fn check_same_adapters(folder: &Path, adapters: Option<&str>) -> Result<(), CheckpointError> {
    let path = folder.join(ADAPTER_CONFIG_FILE);
    let saved = match read_text(&path, LONGEST_CONFIG) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(source) => return Err(CheckpointError::Io { path, source }),
    };
    let compared = |text: Option<&str>| {
        let keys = text.and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok()).unwrap_or_default();
        keys.into_iter().filter(|(key, _)| !FREE_KEYS.contains(&key.as_str())).collect::<Map<_, _>>()
    };
    let [found, expected] = [compared(saved.as_deref()), compared(adapters)];
    let differs = found.keys().chain(expected.keys()).find(|key| found.get(*key) != expected.get(*key)).cloned();
    let Some(key) = differs else { return Ok(()) };
    let show = |keys: &Map<String, Value>| match keys.get(&key) {
        None if keys.is_empty() => "no adapters".to_owned(),
        None => format!("`{key}` without a value"),
        Some(value) => format!("`{key}` {value}"),
    };
    let [found, expected] = [show(&found), show(&expected)];
    Err(CheckpointError::OtherRun { path: folder.to_owned(), what: "adapters with", found, expected })
}

/// Keys of adapters that may change from session to session.
const FREE_KEYS: [&str; 2] = ["lora_dropout", "base_model_name_or_path"];

/// Names for keys of a config.json; other keys are shown as they are.
const WORDS: &[(&str, &str)] = &[
    ("model_type", "family"),
    ("n_positions", "context"),
    ("max_position_embeddings", "context"),
    ("n_embd", "hidden size"),
    ("hidden_size", "hidden size"),
    ("d_model", "hidden size"),
    ("n_layer", "layers"),
    ("num_hidden_layers", "layers"),
    ("num_layers", "layers"),
    ("num_decoder_layers", "decoder layers"),
    ("n_head", "attention heads"),
    ("num_attention_heads", "attention heads"),
    ("num_heads", "attention heads"),
    ("num_key_value_heads", "key/value heads"),
    ("n_inner", "feed-forward size"),
    ("intermediate_size", "feed-forward size"),
    ("d_ff", "feed-forward size"),
    ("vocab_size", "vocabulary"),
];

/// Keys that follow from others.
const DERIVED: &[&str] = &["architectures", "n_ctx"];

/// Compares all of the model, except its dropout rates, with the checkpoint's own configuration.
fn check_same_model(folder: &Path, model: &ModelConfig) -> Result<(), CheckpointError> {
    let path = &folder.join(CONFIG_FILE);
    let text = read_text(path, LONGEST_CONFIG);
    let text = text.map_err(|source| CheckpointError::Io { path: path.clone(), source })?;
    let saved = ModelConfig::from_json(&text).map_err(|error| damaged(path, error.to_string()))?;
    let [found, expected] = [&saved, model].map(without_dropout);
    let differences = differences(&found, &expected);
    match differences.is_empty() {
        true => Ok(()),
        false => Err(CheckpointError::OtherModel { path: folder.to_owned(), differences }),
    }
}

/// The differences in words. For models of two families, only the family: their keys have other names.
fn differences(found: &Map<String, Value>, expected: &Map<String, Value>) -> Vec<String> {
    let differs = |key: &str| found.get(key) != expected.get(key);
    let keys = found.keys().chain(expected.keys()).map(String::as_str).collect::<BTreeSet<_>>();
    let is_other_family = differs("model_type");
    let keys = keys.into_iter().filter(|key| !DERIVED.contains(key) && differs(key));
    let keys = keys.filter(|key| !is_other_family || *key == "model_type");
    let value = |model: &Map<String, Value>, key: &str| match model.get(key) {
        None | Some(Value::Null) => "none".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    let differences = keys.map(|key| {
        let word = WORDS.iter().find(|(known, _)| *known == key);
        let word = word.map_or_else(|| format!("`{key}`"), |(_, word)| (*word).to_owned());
        format!("{word} {} instead of {}", value(found, key), value(expected, key))
    });
    differences.collect()
}

fn without_dropout(model: &ModelConfig) -> Map<String, Value> {
    let mut model = model.clone();
    model.set_dropout(0.0);
    serde_json::from_str(&model.to_json()).expect("a configuration is written as an object")
}
