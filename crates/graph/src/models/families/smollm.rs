//! SmolLM3: Llama with layers that have no positions. Source: transformers' `SmolLM3ForCausalLM`; Yang et al. 2025
//! (arXiv:2501.18795) for the layers without positions.

use super::Architecture;
use super::sizes::{Sizes, add_biases, sliding_layers};
use crate::models::keys::bad;
use serde_json::json;

pub(super) const SMOLLM3: Architecture = Architecture {
    model_type: "smollm3",
    class: "SmolLM3ForCausalLM",
    defaults: || {
        json!({
            "num_key_value_heads": 4, "hidden_act": "silu", "rms_norm_eps": 1e-6, "initializer_range": 0.02,
            "tie_word_embeddings": true, "rope_theta": 2_000_000.0, "no_rope_layer_interval": 4,
        })
    },
    read: |keys| {
        let sizes = Sizes::read(keys)?;
        let mut block = sizes.block(Some(sizes.rotary(keys)?));
        add_biases(keys, &mut block)?;
        let interval = keys.size("no_rope_layer_interval")?;
        let rotates = match keys.list("no_rope_layers", sizes.layers)? {
            // Despite the key's name, 1 marks a layer with positions.
            Some(list) => list.iter().map(|value| value != 0 && value != false).collect::<Vec<_>>(),
            None => (0..sizes.layers).map(|layer| !(layer + 1).is_multiple_of(interval)).collect(),
        };
        keys.record("no_rope_layers", rotates.iter().map(|&rotates| u32::from(rotates)).collect::<Vec<_>>());
        let window = match keys.flag("use_sliding_window")? {
            true => keys.optional_size("sliding_window")?,
            false => None,
        };
        let slides = sliding_layers(keys, sizes.layers, |layer| window.is_some() && !rotates[layer])?;
        if window.is_none() && slides.contains(&true) {
            return Err(bad("layer_types", "asks for sliding_attention, but sliding_window sets no window"));
        }
        let blocks = rotates.iter().zip(slides).map(|(&rotates, slides)| {
            let mut block = block.clone().within(window.filter(|_| slides));
            block.attention.rotary = block.attention.rotary.filter(|_| rotates);
            block
        });
        Ok(sizes.decoder(blocks.collect()))
    },
};
