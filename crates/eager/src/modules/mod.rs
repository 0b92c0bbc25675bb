//! transformers' modules in aten's ops, written once. One file a family.
//! Not here: what ops allocate (`ops/`), the loop around the model (`step.rs`).

mod adapter;
mod four_bit;
mod gpt2;
mod linear;
mod llama;
mod loader;
mod parts;
mod t5;

pub(crate) use parts::Model;

use crate::estimate::Cannot;
use crate::runtime::Rt;
use loader::Loader;
use plimsoll_graph::models::ModelConfig;
use plimsoll_trainers::Run;

/// The model on the card, with its parameters, and what is to be said of it.
/// Errors: names of layers that get additions and that no layer has.
pub(crate) fn load(rt: &Rt, model: &ModelConfig, run: &Run) -> Result<(Box<dyn Model>, Vec<String>), Cannot> {
    // Source: `TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING` of PEFT's `utils/constants.py`.
    let defaults: &[&str] = match model {
        ModelConfig::Gpt2(_) => &["c_attn"],
        ModelConfig::Llama(_) => &["q_proj", "v_proj"],
        ModelConfig::T5(_) => &["q", "v"],
    };
    let loader = Loader::new(rt, run, defaults);
    let model = match model {
        ModelConfig::Gpt2(config) => gpt2::load(&loader, config, run),
        ModelConfig::Llama(config) => llama::load(&loader, config, run),
        ModelConfig::T5(config) => t5::load(&loader, config, run),
    };
    Ok((model, loader.check()?))
}
