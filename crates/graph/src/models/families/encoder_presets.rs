//! The published sizes of encoders, and `bert-nano` for first runs.

use super::{ENCODERS, EncoderConfig};
use serde_json::{Map, Value, json};

/// A named model size.
struct Preset {
    name: &'static str,
    model_type: &'static str,
    width: usize,
    inner: usize,
    layers: usize,
    heads: usize,
}

/// Sources: Devlin et al. 2018, section 3; the config.json files of `all-MiniLM-L6-v2` and of BGE; Warner et al. 2024,
/// table 4.
#[rustfmt::skip]
const PRESETS: &[Preset] = &[
    Preset { name: "bert-nano", model_type: "bert", width: 192, inner: 768, layers: 3, heads: 6 },
    Preset { name: "minilm-l6", model_type: "bert", width: 384, inner: 1536, layers: 6, heads: 12 },
    Preset { name: "bge-small", model_type: "bert", width: 384, inner: 1536, layers: 12, heads: 12 },
    Preset { name: "bert-base", model_type: "bert", width: 768, inner: 3072, layers: 12, heads: 12 },
    Preset { name: "bert-large", model_type: "bert", width: 1024, inner: 4096, layers: 24, heads: 16 },
    Preset { name: "modernbert-base", model_type: "modernbert", width: 768, inner: 1152, layers: 22, heads: 12 },
    Preset { name: "modernbert-large", model_type: "modernbert", width: 1024, inner: 2624, layers: 28, heads: 16 },
];

impl Preset {
    /// As the other presets, without dropout.
    fn config(&self) -> EncoderConfig {
        let keys = json!({
            "hidden_size": self.width, "intermediate_size": self.inner, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
        });
        let Value::Object(keys) = keys else { unreachable!("an object literal") };
        let keys: Map<String, Value> = keys;
        let architecture = ENCODERS.iter().find(|architecture| architecture.model_type == self.model_type);
        EncoderConfig::read(architecture.expect("a family of this name"), &keys).expect("presets are valid")
    }
}

pub(super) fn names() -> impl Iterator<Item = &'static str> {
    PRESETS.iter().map(|preset| preset.name)
}

pub(super) fn find(name: &str) -> Option<EncoderConfig> {
    PRESETS.iter().find(|preset| preset.name == name).map(Preset::config)
}
