//! transformers' modules in aten's ops, written once. One file a family.
//! Not here: what ops allocate (`ops/`), the loop around the model (`step.rs`).

mod gpt2;
mod llama;
mod parts;

pub(crate) use parts::Model;

use crate::estimate::Cannot;
use crate::runtime::Rt;
use plimsoll_graph::models::ModelConfig;
use plimsoll_trainers::Run;

/// The model on the card, with its parameters.
pub(crate) fn load(rt: &Rt, model: &ModelConfig, run: &Run) -> Result<Box<dyn Model>, Cannot> {
    match model {
        ModelConfig::Gpt2(config) => Ok(gpt2::load(rt, config, run)),
        ModelConfig::Llama(config) => Ok(llama::load(rt, config, run)),
        ModelConfig::T5(_) => Err(Cannot::NotModeled("this model family is not modeled yet".to_owned())),
    }
}
