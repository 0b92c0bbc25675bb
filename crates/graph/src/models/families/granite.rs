//! Granite: Llama with constant factors. Source: transformers' `GraniteForCausalLM`.

use super::Architecture;
use super::sizes::{Sizes, add_biases};
use serde_json::json;

pub(super) const GRANITE: Architecture = Architecture {
    model_type: "granite",
    class: "GraniteForCausalLM",
    defaults: || {
        json!({
            "hidden_act": "silu", "rms_norm_eps": 1e-6, "initializer_range": 0.02, "rope_theta": 10_000.0,
            "embedding_multiplier": 1.0, "logits_scaling": 1.0, "residual_multiplier": 1.0,
            "attention_multiplier": 1.0,
        })
    },
    read: |keys| {
        let sizes = Sizes::read(keys)?;
        let mut block = sizes.block(Some(sizes.rotary(keys)?));
        add_biases(keys, &mut block)?;
        let factor = |factor: f32| Some(factor).filter(|factor| *factor != 1.0);
        block.attention.scale = keys.number("attention_multiplier")?;
        block.residual_scale = factor(keys.number("residual_multiplier")?);
        let mut decoder = sizes.decoder(vec![block; sizes.layers]);
        decoder.embedding_scale = factor(keys.number("embedding_multiplier")?);
        decoder.head_scale = factor(1.0 / keys.number("logits_scaling")?);
        Ok(decoder)
    },
};
