//! Mistral and Ministral: Llama with heads of any size and sliding windows. Source: Jiang et al. 2023; transformers'
//! `MistralForCausalLM` and `MinistralForCausalLM`.

use super::Architecture;
use super::reader::Reader;
use super::sizes::{Sizes, sliding_layers};
use crate::GraphError;
use crate::models::description::Decoder;
use serde_json::{Value, json};

/// The window in `transformers` if a file does not set it.
pub(super) const DEFAULT_WINDOW: usize = 4096;

fn defaults() -> Value {
    json!({
        "num_key_value_heads": 8, "hidden_act": "silu", "rms_norm_eps": 1e-6, "initializer_range": 0.02,
        "rope_theta": 10_000.0,
    })
}

/// All layers have the window.
pub(super) const MISTRAL: Architecture = Architecture {
    model_type: "mistral",
    class: "MistralForCausalLM",
    defaults,
    read: |keys| {
        let sizes = Sizes::read(keys)?;
        let mut block = sizes.block(Some(sizes.rotary(keys)?));
        block.attention.window = keys.size_or_off("sliding_window", DEFAULT_WINDOW)?;
        Ok(sizes.decoder(vec![block; sizes.layers]))
    },
};

/// `layer_types` lists the layers with the window.
pub(super) const MINISTRAL: Architecture =
    Architecture { model_type: "ministral", class: "MinistralForCausalLM", defaults, read: read_ministral };

fn read_ministral(keys: &mut Reader<'_>) -> Result<Decoder, GraphError> {
    let sizes = Sizes::read(keys)?;
    let block = sizes.block(Some(sizes.rotary(keys)?));
    let window = keys.size_or_off("sliding_window", DEFAULT_WINDOW)?;
    let slides = sliding_layers(keys, sizes.layers, |_| window.is_some())?;
    let blocks = slides.into_iter().map(|slides| block.clone().within(window.filter(|_| slides)));
    Ok(sizes.decoder(blocks.collect()))
}
