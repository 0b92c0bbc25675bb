//! What must be the same for a resumed run to be the run. What may change from session to session is not here: learning
//! rates, dropout, levers, how long.

use super::find::damaged;
use super::{CONFIG_FILE, CheckpointError, State};
use crate::TrainerConfig;
use plimsoll_files::read_text;
use plimsoll_graph::models::ModelConfig;
use plimsoll_plan::Plan;
use plimsoll_units::Bytes;
use serde_json::{Map, Value};
use std::path::Path;

/// Far more than a configuration takes.
const LONGEST_CONFIG: Bytes = Bytes(1 << 20);

/// Whether the checkpoint at `path`, which `verify` has passed, is of the run that is about to go on.
/// Errors: `OtherRun`, `OtherModel`; its configuration can't be read.
pub(crate) fn check_same_run(
    path: &Path,
    state: &State,
    data_fingerprint: String,
    plan: &Plan,
    config: &TrainerConfig,
) -> Result<(), CheckpointError> {
    let length = |tokens: Option<usize>| tokens.map_or("none".to_owned(), |n| n.to_string());
    for (what, found, expected) in [
        ("data", state.data_fingerprint.clone(), data_fingerprint),
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
    check_same_model(&path.join(CONFIG_FILE), &config.model)
}

/// Compares all of the model but its rates of dropout with the checkpoint's own configuration.
fn check_same_model(path: &Path, model: &ModelConfig) -> Result<(), CheckpointError> {
    let text = read_text(path, LONGEST_CONFIG);
    let text = text.map_err(|source| CheckpointError::Io { path: path.to_owned(), source })?;
    let saved = ModelConfig::from_json(&text).map_err(|error| damaged(path, error.to_string()))?;
    let [found, expected] = [&saved, model].map(without_dropout);
    let mut keys = found.keys().chain(expected.keys());
    let Some(key) = keys.find(|&key| found.get(key) != expected.get(key)) else { return Ok(()) };
    let value = |keys: &Map<String, Value>| keys.get(key).map_or("absent".to_owned(), Value::to_string);
    let (path, key, found, expected) = (path.to_owned(), key.clone(), value(&found), value(&expected));
    Err(CheckpointError::OtherModel { path, key, found, expected })
}

fn without_dropout(model: &ModelConfig) -> Map<String, Value> {
    let mut model = model.clone();
    model.set_dropout(0.0);
    serde_json::from_str(&model.to_json()).expect("a configuration is written as an object")
}
