//! Mixtures of experts: Qwen3-MoE, OLMoE, Mixtral. Source: Jiang et al. 2024 (arXiv:2401.04088), Muennighoff et al. 2024
//! (arXiv:2409.02060), Yang et al. 2025 (arXiv:2505.09388); transformers' `Qwen3MoeForCausalLM`, `OlmoeForCausalLM` and
//! `MixtralForCausalLM`.

use super::Architecture;
use super::qwen::{head_normed, windowed};
use super::reader::Reader;
use super::sizes::{Sizes, add_attention_biases};
use crate::GraphError;
use crate::models::description::{Block, Experts, HeadNorms};
use crate::models::keys::bad;
use serde_json::{Value, json};

/// The keys of experts in a family, and the names of their layers: the list, the router, the gate, the layer that it
/// multiplies, the layer down.
struct Names {
    count: &'static str,
    layers: [&'static str; 5],
}

/// Models with more experts in all layers together are rejected: each is a tensor of its own in the files.
const MOST_EXPERTS: usize = 1 << 16;

/// The key of the number of experts in some families, and in others.
pub(super) const COUNTS: [&str; 2] = ["num_experts", "num_local_experts"];

const NAMES: Names =
    Names { count: COUNTS[0], layers: ["mlp.experts", "mlp.gate", "gate_proj", "up_proj", "down_proj"] };

fn defaults(more: Value) -> Value {
    let mut all = json!({"hidden_act": "silu", "initializer_range": 0.02, "num_experts_per_tok": 8, "router_aux_loss_coef": 0.001});
    all.as_object_mut().expect("an object literal").extend(more.as_object().expect("an object literal").clone());
    all
}

/// A block whose feed-forward layer is that of each expert, with this inner width. Errors: `BadConfig`.
fn with_experts(
    keys: &mut Reader<'_>,
    sizes: &Sizes,
    names: &Names,
    inner: usize,
    normalized: bool,
    mut block: Block,
) -> Result<Block, GraphError> {
    let [list, router, gate, up, down] = names.layers;
    let experts = experts(keys, sizes, names.count, router, normalized)?;
    block.feed_forward = sizes.gated([gate, up, down], inner);
    block.feed_forward.experts = Some(Experts { list, ..experts });
    Ok(block)
}

/// The router and the numbers of experts; their list has no name. `key`: that of the number of experts; `router`: the
/// layer's name. Errors: `BadConfig`.
pub(super) fn experts(
    keys: &mut Reader<'_>,
    sizes: &Sizes,
    key: &'static str,
    router: &'static str,
    normalized: bool,
) -> Result<Experts, GraphError> {
    let count = keys.size_under(key, if key == COUNTS[0] { COUNTS[1] } else { COUNTS[0] })?;
    if count.saturating_mul(sizes.layers) > MOST_EXPERTS {
        let problem = format!("is {count} in each of {} layers; at most 65,536 experts are supported", sizes.layers);
        return Err(bad(key, problem));
    }
    let chosen = keys.size("num_experts_per_tok")?;
    if chosen > count {
        return Err(bad("num_experts_per_tok", format!("is {chosen}, more than {key} = {count}")));
    }
    let router = sizes.linear(router, [sizes.width, count], false);
    Ok(Experts { list: "", stacked: false, count, chosen, router, normalized, balance: balance(keys)? })
}

/// The coefficient of the loss on the balance of experts, if the file asks for the loss. Errors: `BadConfig`.
fn balance(keys: &mut Reader<'_>) -> Result<Option<f32>, GraphError> {
    let (asks, coefficient) = (keys.flag("output_router_logits")?, keys.rate("router_aux_loss_coef")?);
    Ok(Some(coefficient).filter(|coefficient| asks && *coefficient > 0.0))
}

pub(super) const QWEN3_MOE: Architecture = Architecture {
    model_type: "qwen3_moe",
    class: "Qwen3MoeForCausalLM",
    defaults: || {
        defaults(json!({
            "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "decoder_sparse_step": 1,
            "moe_intermediate_size": 768, "num_experts": 128,
        }))
    },
    read: |keys| {
        let sizes = Sizes::read(keys)?;
        let rotary = sizes.rotary(keys)?;
        let dense = head_normed(keys, &sizes, rotary)?;
        let (inner, normalized) = (keys.size("moe_intermediate_size")?, keys.flag("norm_topk_prob")?);
        let sparse = with_experts(keys, &sizes, &NAMES, inner, normalized, dense.clone())?;
        let step = keys.size("decoder_sparse_step")?;
        let only = keys.in_file("mlp_only_layers").cloned().unwrap_or_else(|| json!([]));
        let is_dense = |layer: usize| {
            let listed = only.as_array().is_some_and(|only| only.iter().any(|one| one.as_u64() == Some(layer as u64)));
            listed || !(layer + 1).is_multiple_of(step)
        };
        let windows = windowed(keys, &sizes, &dense)?.into_iter().map(|block| block.attention.window);
        let blocks = windows.enumerate().map(|(layer, window)| {
            let block = if is_dense(layer) { &dense } else { &sparse };
            block.clone().within(window)
        });
        let blocks = blocks.collect();
        keys.record("mlp_only_layers", only.clone());
        Ok(sizes.decoder(blocks))
    },
};

pub(super) const OLMOE: Architecture = Architecture {
    model_type: "olmoe",
    class: "OlmoeForCausalLM",
    defaults: || {
        defaults(json!({"rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "num_experts": 64, "router_aux_loss_coef": 0.01}))
    },
    read: |keys| {
        let sizes = Sizes::read(keys)?;
        let mut block = sizes.block(Some(sizes.rotary(keys)?));
        add_attention_biases(keys, &mut block)?;
        let [queries, of_keys] = ["self_attn.q_norm", "self_attn.k_norm"].map(|name| sizes.norm(name));
        block.attention.norms = Some(HeadNorms { queries, keys: of_keys, each_head: false });
        let normalized = keys.flag("norm_topk_prob")?;
        let block = with_experts(keys, &sizes, &NAMES, sizes.inner, normalized, block)?;
        Ok(sizes.decoder(vec![block; sizes.layers]))
    },
};

pub(super) const MIXTRAL: Architecture = Architecture {
    model_type: "mixtral",
    class: "MixtralForCausalLM",
    defaults: || {
        defaults(json!({
            "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0, "num_experts_per_tok": 2,
            "num_local_experts": 8,
        }))
    },
    read: |keys| {
        let sizes = Sizes::read(keys)?;
        let mut block = sizes.block(Some(sizes.rotary(keys)?));
        block.attention.window = keys.optional_size("sliding_window")?;
        if keys.rate("router_jitter_noise")? > 0.0 {
            return Err(bad("router_jitter_noise", "is above 0, which is not supported"));
        }
        let layers = ["block_sparse_moe.experts", "block_sparse_moe.gate", "w1", "w3", "w2"];
        let names = Names { count: COUNTS[1], layers };
        let block = with_experts(keys, &sizes, &names, sizes.inner, true, block)?;
        Ok(sizes.decoder(vec![block; sizes.layers]))
    },
};
