//! gpt-oss: mixtures of experts with biases and a clamped SwiGLU, sinks of attention, windows in every other layer. Source:
//! OpenAI 2025 (arXiv:2508.10925); transformers' `GptOssForCausalLM`.

use super::Architecture;
use super::moe::{self, COUNTS};
use super::reader::Reader;
use super::rope;
use super::sizes::{Sizes, add_attention_biases, sliding_layers};
use crate::GraphError;
use crate::models::description::{Experts, FeedForward, Inner, Linear, RotaryPositions, Sinks};
use crate::ops::{ClampedSwiglu, RopeScaling, WeightLayout};
use serde_json::json;

/// The window in `transformers` if a file does not set it.
const DEFAULT_WINDOW: usize = 128;

/// The base of the positions in `transformers` if a file does not set it.
const THETA: f64 = 150_000.0;

pub(super) const GPT_OSS: Architecture = Architecture {
    model_type: "gpt_oss",
    class: "GptOssForCausalLM",
    defaults: || {
        json!({
            "num_key_value_heads": 8, "head_dim": 64, "hidden_act": "silu", "rms_norm_eps": 1e-5, "initializer_range": 0.02,
            "rope_theta": THETA, "attention_bias": true, "num_local_experts": 128, "num_experts_per_tok": 4,
            "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "router_aux_loss_coef": 0.001,
        })
    },
    read: |keys| {
        let sizes = Sizes::read(keys)?;
        let mut block = sizes.block(Some(rotary(keys, &sizes)?));
        add_attention_biases(keys, &mut block)?;
        block.attention.sinks = Some(Sinks { name: "self_attn.sinks", deviation: sizes.deviation });
        block.feed_forward = experts(keys, &sizes)?;
        let window = keys.size_or_off("sliding_window", DEFAULT_WINDOW)?;
        let slides = sliding_layers(keys, sizes.layers, |layer| layer.is_multiple_of(2))?;
        let blocks = slides.into_iter().map(|slides| block.clone().within(window.filter(|_| slides)));
        Ok(sizes.decoder(blocks.collect()))
    },
};

/// The positions. A file that does not set them has those of the published models. Errors: `BadConfig`.
fn rotary(keys: &mut Reader<'_>, sizes: &Sizes) -> Result<RotaryPositions, GraphError> {
    if ["rope_parameters", "rope_scaling"].into_iter().all(|key| keys.in_file(key).is_none()) {
        let published = json!({
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
            "original_max_position_embeddings": 4096,
        });
        let theta = f64::from(keys.number("rope_theta")?);
        let rope = rope::of_layers(keys, &published, theta)?;
        return sizes.rotated(keys, rope);
    }
    let rotary = sizes.rotary(keys)?;
    if rotary.scaling.scaling == RopeScaling::None {
        keys.record("rope_scaling", json!({"rope_type": "default"}));
    }
    Ok(rotary)
}

/// The router and its experts. Errors: `BadConfig`.
fn experts(keys: &mut Reader<'_>, sizes: &Sizes) -> Result<FeedForward, GraphError> {
    let experts = moe::experts(keys, sizes, COUNTS[1], "mlp.router", true)?;
    let activation = ClampedSwiglu { alpha: keys.number("swiglu_alpha")?, limit: keys.number("swiglu_limit")? };
    let (width, inner) = (sizes.width, sizes.inner);
    let stacked = |name, extents| Linear { layout: WeightLayout::InOut, ..sizes.linear(name, extents, true) };
    let router = Linear { bias: true, ..experts.router };
    Ok(FeedForward {
        inner: Inner::ClampedSwiglu { layer: stacked("gate_up_proj", [width, 2 * inner]), activation },
        down: stacked("down_proj", [inner, width]),
        dropout: None,
        experts: Some(Experts { list: "mlp.experts", stacked: true, router, ..experts }),
    })
}
