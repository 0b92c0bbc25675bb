//! Which models llama.cpp runs.

use plimsoll_gguf::{FileType, GgufError, ModelParts, model};
use plimsoll_graph::models::ModelConfig;
use serde_json::{Value, json};
use std::path::Path;

/// What llama.cpp lacks for a model; empty if it has everything. The weights are not there, which is reported later.
fn problems(config: &ModelConfig) -> Vec<String> {
    match model(config, Path::new("nothing"), false, &ModelParts::default(), FileType::F32) {
        Err(GgufError::Unsupported { problems, .. }) => problems,
        _ => vec![],
    }
}

fn changed(preset: &str, changes: &Value) -> Vec<String> {
    let preset = ModelConfig::preset(preset).expect("a preset");
    let mut keys: Value = serde_json::from_str(&preset.to_json()).expect("JSON");
    keys.as_object_mut().expect("an object").extend(changes.as_object().expect("an object").clone());
    problems(&ModelConfig::from_json(&keys.to_string()).expect("a configuration"))
}

#[test]
fn published_models_have_an_architecture() {
    for preset in ModelConfig::preset_names() {
        let config = ModelConfig::preset(preset).expect("a preset");
        assert_eq!(problems(&config), [""; 0], "{preset}");
    }
}

#[test]
fn what_llama_cpp_computes_differently_is_reported() {
    for (preset, changes, problem) in [
        ("llama-3.2-1b", json!({"hidden_act": "gelu"}), "another activation"),
        ("qwen3-0.6b", json!({"attention_bias": true}), "`self_attn.q_proj` has a bias"),
        ("smollm3-3b", json!({"no_rope_layer_interval": 2, "no_rope_layers": null}), "rotary positions"),
        ("gemma-2-2b", json!({"query_pre_attn_scalar": 99}), "attention has its own scale"),
        ("gemma-2-2b", json!({"final_logit_softcapping": null}), "logits have no soft limit"),
        ("gemma-3-1b", json!({"sliding_window_pattern": 2, "layer_types": null}), "windows of attention"),
        ("olmoe-1b-7b", json!({"norm_topk_prob": true}), "sum to one"),
        ("gpt-oss-20b", json!({"swiglu_limit": 5.0}), "swiglu_limit"),
        ("t5-small", json!({"relative_attention_max_distance": 64}), "relative_attention_max_distance"),
    ] {
        let found = changed(preset, &changes);
        assert!(found.first().is_some_and(|found| found.contains(problem)), "{preset}: {found:?}");
        assert_eq!(changed(preset, &json!({})), [""; 0], "{preset}");
    }
}

#[test]
fn a_family_without_an_architecture_is_refused() {
    let mut keys: Value =
        serde_json::from_str(&ModelConfig::preset("mistral-7b").expect("a preset").to_json()).expect("JSON");
    keys["model_type"] = json!("ministral");
    let found = problems(&ModelConfig::from_json(&keys.to_string()).expect("a configuration"));
    assert_eq!(found, ["it has no such architecture"]);
}
