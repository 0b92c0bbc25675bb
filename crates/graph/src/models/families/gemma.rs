//! Gemma, Gemma 2 and the text models of Gemma 3: norms with an offset weight, a scaled embedding, heads of 256, in Gemma 2
//! soft caps, in Gemma 3 norms of queries and keys and two rotary bases. Source: Gemma Team 2024 (arXiv:2403.08295,
//! arXiv:2408.00118), 2025 (arXiv:2503.19786); transformers' `Gemma3ForCausalLM` and its predecessors.

use super::Architecture;
use super::reader::Reader;
use super::rope::{self, Rope};
use super::sizes::{Sizes, add_attention_biases, sliding_layers};
use crate::GraphError;
use crate::models::ContextScaling;
use crate::models::description::{Block, Decoder, HeadNorms, Norm, NormFormula, Norms, RotaryPositions};
use crate::models::keys::bad;
use crate::ops::Activation;
use serde_json::{Value, json};

fn defaults() -> Value {
    json!({
        "vocab_size": 256_000, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 8192, "rms_norm_eps": 1e-6,
        "initializer_range": 0.02, "tie_word_embeddings": true, "query_pre_attn_scalar": 256, "rope_theta": 10_000.0,
    })
}

pub(super) const GEMMA: Architecture = Architecture {
    model_type: "gemma",
    class: "GemmaForCausalLM",
    defaults: || {
        let mut defaults = defaults();
        defaults["num_key_value_heads"] = json!(16);
        defaults["num_attention_heads"] = json!(16);
        defaults["hidden_act"] = json!("gelu_pytorch_tanh");
        defaults
    },
    read: |keys| {
        let mut sizes = Sizes::read(keys)?;
        if sizes.activation == Activation::Gelu {
            // Older files name the exact function, but the published weights were trained with the approximation.
            sizes.activation = Activation::GeluTanh;
            keys.record("hidden_act", "gelu_pytorch_tanh");
        }
        let mut block = sizes.block(Some(sizes.rotary(keys)?));
        add_attention_biases(keys, &mut block)?;
        block.attention_norms = Norms::before(offset(sizes.norm("input_layernorm")));
        block.feed_forward_norms = Norms::before(offset(sizes.norm("post_attention_layernorm")));
        Ok(scaled(&sizes, vec![block; sizes.layers]))
    },
};

pub(super) const GEMMA2: Architecture = Architecture {
    model_type: "gemma2",
    class: "Gemma2ForCausalLM",
    defaults: || {
        let mut defaults = defaults();
        defaults["attn_logit_softcapping"] = json!(50.0);
        defaults["final_logit_softcapping"] = json!(30.0);
        defaults
    },
    read: |keys| {
        let sizes = Sizes::with_activation(keys, "hidden_activation")?;
        let mut block = block(keys, &sizes)?;
        block.attention.cap = keys.optional_number("attn_logit_softcapping")?;
        block.attention.rotary = Some(sizes.rotary(keys)?);
        let window = keys.size_or_off("sliding_window", 4096)?;
        let slides = sliding_layers(keys, sizes.layers, |layer| layer % 2 == 0)?;
        let blocks = slides.into_iter().map(|slides| block.clone().within(window.filter(|_| slides)));
        let mut decoder = scaled(&sizes, blocks.collect());
        decoder.logit_cap = keys.optional_number("final_logit_softcapping")?;
        Ok(decoder)
    },
};

/// The number of layers of which the last attends to all tokens.
const PATTERN: usize = 6;

pub(super) const GEMMA3: Architecture = Architecture {
    model_type: "gemma3_text",
    class: "Gemma3ForCausalLM",
    defaults: || {
        let mut defaults = defaults();
        defaults["vocab_size"] = json!(262_208);
        defaults["max_position_embeddings"] = json!(131_072);
        defaults["rope_theta"] = json!(1_000_000.0);
        defaults
    },
    read: |keys| {
        let sizes = Sizes::with_activation(keys, "hidden_activation")?;
        let mut block = block(keys, &sizes)?;
        let [queries, of_keys] = ["self_attn.q_norm", "self_attn.k_norm"].map(|name| offset(sizes.norm(name)));
        block.attention.norms = Some(HeadNorms { queries, keys: of_keys, each_head: true });
        let window = keys.size_or_off("sliding_window", 4096)?;
        let pattern = keys.optional_size("sliding_window_pattern")?.unwrap_or(PATTERN);
        keys.record("sliding_window_pattern", pattern);
        let slides = sliding_layers(keys, sizes.layers, |layer| !(layer + 1).is_multiple_of(pattern))?;
        let [global, local] = rotaries(keys, &sizes)?;
        let blocks = slides.into_iter().map(|slides| {
            let mut block = block.clone().within(window.filter(|_| slides));
            block.attention.rotary = Some(if slides { local.clone() } else { global.clone() });
            block
        });
        let mut decoder = scaled(&sizes, blocks.collect());
        decoder.logit_cap = keys.optional_number("final_logit_softcapping")?;
        Ok(decoder)
    },
};

/// The rotary positions of the layers without a window and with one. Newer files have both in `rope_parameters`, older
/// ones under `rope_theta` with `rope_scaling` and under `rope_local_base_freq`. Errors: `BadConfig`.
fn rotaries(keys: &mut Reader<'_>, sizes: &Sizes) -> Result<[RotaryPositions; 2], GraphError> {
    let [global, local] = match keys.in_file("rope_parameters").and_then(Value::as_object) {
        Some(both) if both.contains_key("full_attention") || both.contains_key("sliding_attention") => {
            let of = |kind, theta| rope::of_layers(keys, both.get(kind).unwrap_or(&Value::Null), theta);
            [of("full_attention", 1_000_000.0)?, of("sliding_attention", 10_000.0)?]
        }
        _ => {
            let theta = keys.in_file("rope_local_base_freq").and_then(Value::as_f64).unwrap_or(10_000.0);
            let local = Rope { theta, scaling: ContextScaling::default(), rotated: 1.0 };
            [rope::read(keys)?, local]
        }
    };
    if local.scaling != ContextScaling::default() {
        return Err(bad("rope_parameters", "scales the positions of layers with a window, which is not supported"));
    }
    keys.record("rope_theta", global.theta);
    keys.record("rope_scaling", rope::write(&global.scaling));
    keys.record("rope_local_base_freq", local.theta);
    Ok([sizes.positions(global)?, sizes.positions(local)?])
}

/// A block of Gemma 2 and 3, without what differs between them. Errors: `BadConfig`.
fn block(keys: &mut Reader<'_>, sizes: &Sizes) -> Result<Block, GraphError> {
    let mut block = sizes.block(None);
    add_attention_biases(keys, &mut block)?;
    block.attention.scale = 1.0 / keys.number("query_pre_attn_scalar")?.sqrt();
    let norm = |name| Some(offset(sizes.norm(name)));
    block.attention_norms = Norms { before: norm("input_layernorm"), after: norm("post_attention_layernorm") };
    block.feed_forward_norms =
        Norms { before: norm("pre_feedforward_layernorm"), after: norm("post_feedforward_layernorm") };
    Ok(block)
}

fn offset(norm: Norm) -> Norm {
    Norm { formula: NormFormula::OffsetRms, ..norm }
}

/// A decoder whose embedding is multiplied by the square root of its width.
fn scaled(sizes: &Sizes, blocks: Vec<Block>) -> Decoder {
    let mut decoder = sizes.decoder(blocks);
    decoder.embedding_scale = Some((sizes.width as f32).sqrt());
    decoder.last_norm = offset(decoder.last_norm);
    decoder
}
