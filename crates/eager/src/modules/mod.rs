//! The modules of transformers in terms of aten's ops, from a model's description.
//! Not here: the memory of ops (`ops/`), the loop around the model (`step.rs`).

mod adapter;
mod decoder;
mod encoder;
mod four_bit;
mod linear;
mod loader;
mod loading;
mod merged;
mod parts;
mod rotation;
mod source;
mod t5;

pub(crate) use parts::{Model, Outputs};
pub(crate) use source::Source;

use crate::estimate::Cannot;
use crate::runtime::Rt;
use crate::sharding::is_parallel;
use loader::Loader;
use plimsoll_graph::models::{Description, ModelConfig};
use plimsoll_trainers::Run;

/// Loads the model and its parameters to the card; also returns notes for the user.
/// Errors: no layer has the name of a LoRA target, or LoRA needs names of layers.
pub(crate) fn load(rt: &Rt, model: &ModelConfig, run: &Run) -> Result<(Box<dyn Model>, Vec<String>), Cannot> {
    let source = Source::of(model);
    let loader = Loader::new(rt, run, source.lora_targets);
    let model = match model.describe() {
        Description::Decoder(description) => decoder::load(&loader, description, &source, run),
        Description::EncoderDecoder(description) => t5::load(&loader, description, &source, run),
        Description::Encoder(_) if is_parallel(run) => {
            return Err(Cannot::NotModeled("encoders are modeled on one GPU".to_owned()));
        }
        Description::Encoder(description) => encoder::load(&loader, description, &source, run),
    };
    loader.order_allocations();
    Ok((model, loader.check()?))
}
