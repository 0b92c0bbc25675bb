//! Notebooks and Python scripts of trainers as settings: the plain arguments of the calls that load a model and train
//! it. Not here: parsing of code (`plimsoll_trainers::notebook`).

use crate::cli::Failure;
use plimsoll_trainers::document::{Document, Value};
use plimsoll_trainers::notebook;
use serde_json::{Map, Value as Json, json};
use std::path::Path;

/// The settings of a notebook or a script, as JSON; `None` for other files. Errors: it is not a notebook.
pub(super) fn settings_of(path: &Path, text: &str) -> Result<Option<String>, Failure> {
    let extension = path.extension().map(|extension| extension.to_ascii_lowercase());
    let document = match extension.as_ref().and_then(|extension| extension.to_str()) {
        Some("ipynb") => notebook::parse(text),
        Some("py") => notebook::parse_code(text),
        _ => return Ok(None),
    };
    let document = document.map_err(|words| Failure::bad_input(format!("{}: {words}", path.display())))?;
    Ok(Some(plain(&document).to_string()))
}

/// The plain values; values that code computes are unknown.
fn plain(document: &Document) -> Json {
    let entries = document.0.iter().filter(|entry| !entry.key.contains('.'));
    let entries = entries.filter_map(|entry| Some((entry.key.clone(), json_of(&entry.value)?)));
    Json::Object(entries.collect::<Map<_, _>>())
}

fn json_of(value: &Value) -> Option<Json> {
    Some(match value {
        Value::Null => Json::Null,
        Value::Plain(text) => match serde_json::from_str(text) {
            Ok(scalar @ (Json::Bool(_) | Json::Number(_))) => scalar,
            _ => json!(text),
        },
        Value::List(items) => Json::Array(items.iter().map(|item| json_of(&item.value)).collect::<Option<_>>()?),
        Value::Map(_) | Value::Code => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_arguments_are_settings() {
        let code = "length = 2048\nmodel, tok = FastLanguageModel.from_pretrained(model_name = 'a/b', max_seq_length = length, \
                    load_in_4bit = True, dtype = None)\nmodel = FastLanguageModel.get_peft_model(model, r = 16, target_modules = \
                    ['q_proj', 'v_proj'])\ntrainer = SFTTrainer(args = SFTConfig(per_device_train_batch_size = 2, bf16 = works()))\n";
        let expected = json!({
            "model_name": "a/b", "max_seq_length": 2048, "load_in_4bit": true, "dtype": null, "r": 16,
            "target_modules": ["q_proj", "v_proj"], "per_device_train_batch_size": 2,
        });
        let cell = json!({ "cells": [{ "cell_type": "code", "source": code }] }).to_string();
        for (name, text) in [("a.py", code), ("a.ipynb", &cell)] {
            let settings = settings_of(Path::new(name), text).expect("it is read").expect("settings");
            assert_eq!(serde_json::from_str::<Json>(&settings).expect("JSON"), expected, "{name}");
        }
        assert!(settings_of(Path::new("a.ipynb"), "{").is_err());
        assert!(settings_of(Path::new("a.yml"), "{").expect("not read").is_none());
    }
}
