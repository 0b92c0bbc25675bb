//! Phi-3 and Phi-4: one layer for queries, keys and values, and one for the gate and what it multiplies. Source: Abdin et
//! al. 2024 (arXiv:2404.14219); transformers' `Phi3ForCausalLM`.

use super::Architecture;
use super::sizes::Sizes;
use crate::models::description::{AttentionInputs, Gate, Inner};
use serde_json::json;

pub(super) const PHI3: Architecture = Architecture {
    model_type: "phi3",
    class: "Phi3ForCausalLM",
    defaults: || {
        json!({
            "hidden_act": "silu", "rms_norm_eps": 1e-5, "initializer_range": 0.02, "rope_theta": 10_000.0,
        })
    },
    read: |keys| {
        let sizes = Sizes::read(keys)?;
        let rotary = sizes.partial_rotary(keys)?;
        if let Some((original, _)) = &rotary.scaling.longer {
            // The class has a default for this key, which comes before that of the scaling.
            keys.record("original_max_position_embeddings", *original);
        }
        let mut block = sizes.block(Some(rotary));
        let width = sizes.width;
        let packed = sizes.linear("self_attn.qkv_proj", [width, sizes.channels().iter().sum()], false);
        block.attention.inputs = AttentionInputs::Packed(packed);
        if let Inner::Gated { layers, .. } = &mut block.feed_forward.inner {
            *layers = Gate::Packed(sizes.linear("mlp.gate_up_proj", [width, 2 * sizes.inner], false));
        }
        block.attention.window = keys.optional_size("sliding_window")?;
        block.residual_dropout = Some(keys.rate("resid_pdrop")?);
        let mut decoder = sizes.decoder(vec![block; sizes.layers]);
        decoder.embedding_dropout = Some(keys.rate("embd_pdrop")?);
        Ok(decoder)
    },
};
