//! OLMo 2 and 3: norms of the results of a block's parts, and of all queries and all keys together; in OLMo 3 sliding
//! windows. Source: OLMo Team 2024 (arXiv:2501.00656); transformers' `Olmo2ForCausalLM` and `Olmo3ForCausalLM`.

use super::Architecture;
use super::reader::Reader;
use super::rope::{self, Rope};
use super::sizes::{Sizes, add_attention_biases, sliding_layers};
use crate::GraphError;
use crate::models::ContextScaling;
use crate::models::description::{Block, HeadNorms, Norms, RotaryPositions};
use serde_json::{Value, json};

fn defaults(theta: f64) -> Value {
    json!({"hidden_act": "silu", "rms_norm_eps": 1e-5, "initializer_range": 0.02, "rope_theta": theta})
}

pub(super) const OLMO2: Architecture = Architecture {
    model_type: "olmo2",
    class: "Olmo2ForCausalLM",
    defaults: || defaults(10_000.0),
    read: |keys| {
        let sizes = Sizes::read(keys)?;
        let rotary = sizes.rotary(keys)?;
        let block = block(keys, &sizes, rotary)?;
        Ok(sizes.decoder(vec![block; sizes.layers]))
    },
};

/// The scaling of positions applies to the layers without a window.
pub(super) const OLMO3: Architecture = Architecture {
    model_type: "olmo3",
    class: "Olmo3ForCausalLM",
    defaults: || defaults(500_000.0),
    read: |keys| {
        let sizes = Sizes::read(keys)?;
        let both = keys.in_file("rope_parameters");
        let of = |kind: &str| both.and_then(|both| both.get(kind)).filter(|of_kind| !of_kind.is_null());
        let whole = match of("full_attention") {
            Some(full) => rope::of_layers(keys, full, 500_000.0)?,
            None => rope::read(keys)?,
        };
        let local = match of("sliding_attention") {
            Some(local) => rope::of_layers(keys, local, whole.theta)?,
            None => Rope { theta: whole.theta, scaling: ContextScaling::default(), rotated: 1.0 },
        };
        let written = |rope: &Rope| {
            let mut map = match rope::write(&rope.scaling) {
                Value::Null => json!({"rope_type": "default"}),
                scaling => scaling,
            };
            map["rope_theta"] = json!(rope.theta);
            map
        };
        let both = json!({"full_attention": written(&whole), "sliding_attention": written(&local)});
        keys.record("rope_parameters", both);
        let (whole, local) = (sizes.positions(whole)?, sizes.positions(local)?);
        let block = block(keys, &sizes, whole)?;
        let window = keys.size_or_off("sliding_window", 4096)?;
        let slides = sliding_layers(keys, sizes.layers, |layer| !(layer + 1).is_multiple_of(4))?;
        let blocks = slides.into_iter().map(|slides| {
            let mut block = block.clone().within(window.filter(|_| slides));
            if slides {
                block.attention.rotary = Some(local.clone());
            }
            block
        });
        Ok(sizes.decoder(blocks.collect()))
    },
};

fn block(keys: &mut Reader<'_>, sizes: &Sizes, rotary: RotaryPositions) -> Result<Block, GraphError> {
    let mut block = sizes.block(Some(rotary));
    add_attention_biases(keys, &mut block)?;
    let [queries, of_keys] = ["self_attn.q_norm", "self_attn.k_norm"].map(|name| sizes.norm(name));
    block.attention.norms = Some(HeadNorms { queries, keys: of_keys, each_head: false });
    block.attention_norms = Norms { before: None, after: Some(sizes.norm("post_attention_layernorm")) };
    block.feed_forward_norms = Norms { before: None, after: Some(sizes.norm("post_feedforward_layernorm")) };
    Ok(block)
}
