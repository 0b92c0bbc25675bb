//! Qwen2, with biases for queries, keys and values, and Qwen3, with norms of queries and keys. Source: Yang et al. 2024
//! (arXiv:2407.10671), Yang et al. 2025 (arXiv:2505.09388); transformers' `Qwen2ForCausalLM` and `Qwen3ForCausalLM`.

use super::Architecture;
use super::mistral::DEFAULT_WINDOW;
use super::reader::Reader;
use super::sizes::{Sizes, add_attention_biases, sliding_layers};
use crate::GraphError;
use crate::models::description::{Block, HeadNorms, RotaryPositions};
use crate::models::keys::{bad, whole_or};
use serde_json::json;

/// The first layer with a window if the file does not set it.
const DEFAULT_WINDOW_LAYERS: usize = 28;

pub(super) const QWEN2: Architecture = Architecture {
    model_type: "qwen2",
    class: "Qwen2ForCausalLM",
    defaults: || json!({"hidden_act": "silu", "rms_norm_eps": 1e-6, "initializer_range": 0.02, "rope_theta": 10_000.0}),
    read: |keys| {
        let sizes = Sizes::read(keys)?;
        let mut block = sizes.block(Some(sizes.rotary(keys)?));
        for layer in block.attention.inputs.layers_mut() {
            layer.bias = true;
        }
        Ok(sizes.decoder(windowed(keys, &sizes, &block)?))
    },
};

pub(super) const QWEN3: Architecture = Architecture {
    model_type: "qwen3",
    class: "Qwen3ForCausalLM",
    defaults: || {
        json!({
            "num_key_value_heads": 32, "head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-6,
            "initializer_range": 0.02, "rope_theta": 10_000.0,
        })
    },
    read: |keys| {
        let sizes = Sizes::read(keys)?;
        let rotary = sizes.rotary(keys)?;
        let block = head_normed(keys, &sizes, rotary)?;
        Ok(sizes.decoder(windowed(keys, &sizes, &block)?))
    },
};

/// A block of Qwen3, without windows. Errors: `BadConfig`.
pub(super) fn head_normed(keys: &mut Reader<'_>, sizes: &Sizes, rotary: RotaryPositions) -> Result<Block, GraphError> {
    let mut block = sizes.block(Some(rotary));
    add_attention_biases(keys, &mut block)?;
    let [queries, of_keys] = ["self_attn.q_norm", "self_attn.k_norm"].map(|name| sizes.norm(name));
    block.attention.norms = Some(HeadNorms { queries, keys: of_keys, each_head: true });
    Ok(block)
}

/// The blocks: all layers from `max_window_layers` on have the window, or those that `layer_types` lists.
/// Errors: `BadConfig`. Source: transformers 5.24, `configuration_qwen2.py`.
pub(super) fn windowed(keys: &mut Reader<'_>, sizes: &Sizes, block: &Block) -> Result<Vec<Block>, GraphError> {
    let is_windowed = keys.flag("use_sliding_window")?;
    let first = match keys.in_file("max_window_layers") {
        Some(value) => whole_or(&json!({"max_window_layers": value}), "max_window_layers", 0)?,
        None => DEFAULT_WINDOW_LAYERS,
    };
    let slides = sliding_layers(keys, sizes.layers, |layer| is_windowed && layer >= first)?;
    if !slides.contains(&true) {
        return Ok(vec![block.clone(); sizes.layers]);
    }
    keys.record("max_window_layers", first);
    let window = if is_windowed { keys.size_or_off("sliding_window", DEFAULT_WINDOW)? } else { None };
    if window.is_none() {
        return Err(bad(
            "layer_types",
            "asks for sliding_attention, but use_sliding_window and sliding_window set no window",
        ));
    }
    Ok(slides.into_iter().map(|slides| block.clone().within(window.filter(|_| slides))).collect())
}
