//! Any config.json is accepted or rejected without a panic: config files come with models from anywhere.

use plimsoll_graph::models::ModelConfig;
use proptest::prelude::*;
use serde_json::{Value, json};

/// Limit of blocks of a model, each of which declares parameters. The largest known model has 126.
const BLOCKS_MAX: usize = 10_000;

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        (0_u64..70).prop_map(|number| json!(number)),
        any::<u64>().prop_map(|number| json!(number)),
        any::<i64>().prop_map(|number| json!(number)),
        any::<f64>().prop_map(|number| json!(number)),
        (0_u32..64).prop_map(|bits| json!(1_u64 << bits)),
        "[a-z_0-9]{0,8}".prop_map(|text| json!(text)),
        prop::sample::select(vec![
            json!(null),
            json!(true),
            json!([]),
            json!([1, "a"]),
            json!({}),
            json!({"type": "x"})
        ]),
    ]
}

proptest! {
    #[test]
    fn any_values_are_accepted_or_rejected_by_key(
        preset in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), value()), 0..4),
    ) {
        let name = ModelConfig::preset_names()[preset.index(ModelConfig::preset_names().len())];
        let mut config: Value = serde_json::from_str(&ModelConfig::preset(name).unwrap().to_json()).unwrap();
        let keys = config.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        for (key, value) in changes {
            config[&keys[key.index(keys.len())]] = value;
        }
        match ModelConfig::from_json(&config.to_string()) {
            Ok(model) => {
                prop_assert!(model.blocks() <= BLOCKS_MAX, "{config}");
                prop_assert!(!model.parameter_names().is_empty());
            }
            Err(error) => prop_assert!(error.to_string().len() < 2000, "{error}"),
        }
    }

    #[test]
    fn any_text_is_accepted_or_rejected(text in "\\PC{0,40}|\\{\"model_type\": ?\"(gpt2|llama|t5)\"[{}\\[\\]\":,a-z0-9]{0,60}") {
        prop_assert!(ModelConfig::from_json(&text).is_err());
    }
}

#[test]
fn deep_json_is_rejected() {
    let deep = format!(r#"{{"model_type":"gpt2","x":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    assert!(ModelConfig::from_json(&deep).is_err());
}
