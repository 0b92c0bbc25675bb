//! Llama. Source: Touvron et al. 2023; names and layouts follow `LlamaForCausalLM` of `transformers`.

use super::Architecture;
use super::reader::Reader;
use super::sizes::{Sizes, add_biases};
use crate::GraphError;
use crate::models::description::Decoder;
use serde_json::json;

pub(super) const LLAMA: Architecture = Architecture {
    model_type: "llama",
    class: "LlamaForCausalLM",
    defaults: || json!({"hidden_act": "silu", "rms_norm_eps": 1e-6, "initializer_range": 0.02, "rope_theta": 10_000.0}),
    read,
};

fn read(keys: &mut Reader<'_>) -> Result<Decoder, GraphError> {
    let sizes = Sizes::read(keys)?;
    let mut block = sizes.block(Some(sizes.rotary(keys)?));
    add_biases(keys, &mut block)?;
    Ok(sizes.decoder(vec![block; sizes.layers]))
}
