//! Runs on several cards, or with a part of them in the host's memory: what is stored where, and the buffers of transfers.
//! One file a way. Not here: how the model computes (`modules/`), what an optimizer keeps (`optimizers/`).
//!
//! ```text
//!   DDP            weights, gradients, state: whole    + gradients again, in buckets
//!   ZeRO 1 and 2   weights: whole; gradients (2), fp32 weights, state: a part    + a bucket
//!   ZeRO 3, FSDP   all: a part    + weights and gradients of the block that runs
//! ```

mod ddp;
mod fsdp;
mod host;
#[cfg(test)]
mod tests;
mod units;
mod zero;
mod zero3;

pub(crate) use units::{Units, watched};

use crate::estimate::Cannot;
use crate::optimizers::{self, Stepper, clip};
use crate::runtime::{DType, Rt, Tensor};
use plimsoll_graph::models::ModelConfig;
use plimsoll_trainers::{Method, Precision, Run, Sharding};
use std::cell::RefCell;
use std::rc::Rc;

/// Which of several truths a step is run for, where what is sent overlaps with what computes, or a setting is not told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bound {
    Least,
    Likely,
    Most,
}

/// What is done around passes and updates.
pub(crate) trait Division {
    /// Before the forward pass of a micro-batch. `is_last`: its backward pass sends gradients.
    fn begin(&self, _: &Rt, _is_last: bool) {}

    /// After its backward pass.
    fn end(&self, _: &Rt, _is_last: bool) {}

    /// The optimizer's step, and what is around it.
    fn update(&self, rt: &Rt, optimizer: &mut dyn Stepper, clips: bool);
}

/// All on one card.
struct Whole {
    trained: Vec<Tensor>,
}

impl Division for Whole {
    fn update(&self, rt: &Rt, optimizer: &mut dyn Stepper, clips: bool) {
        update(rt, &self.trained, optimizer, clips);
    }
}

/// All on one card, updated in the backward pass.
struct Updated;

impl Division for Updated {
    fn update(&self, _: &Rt, _: &mut dyn Stepper, _: bool) {}
}

/// Clips, steps, and frees gradients.
fn update(rt: &Rt, trained: &[Tensor], optimizer: &mut dyn Stepper, clips: bool) {
    if clips {
        clip(rt, trained);
    }
    optimizer.step(rt, trained);
    clear(trained);
}

fn clear(trained: &[Tensor]) {
    for parameter in trained {
        drop(taken_gradient(parameter));
    }
}

fn taken_gradient(parameter: &Tensor) -> Option<Tensor> {
    parameter.leaf().and_then(|leaf| leaf.grad.borrow_mut().take())
}

/// Whether the run is divided among cards, in a process for each.
pub(crate) fn is_parallel(run: &Run) -> bool {
    run.cards > 1 && run.sharding != Sharding::None
}

/// Whether figures depend on what overlaps, or on settings that are not told.
pub(crate) fn is_uncertain(run: &Run) -> bool {
    run.compiles || matches!(run.sharding, Sharding::Zero { .. } | Sharding::Fsdp)
}

/// The run as the modules see it: DeepSpeed's and FSDP's mixed precision casts weights, the former without autocast.
/// Source: `DeepSpeedEngine._configure_distributed_model`; accelerate's `FullyShardedDataParallelPlugin.set_mixed_precision`.
pub(crate) fn as_computed(run: &Run) -> Run {
    let precision = match (run.sharding, run.precision) {
        (Sharding::Zero { .. } | Sharding::Fsdp, Precision::AmpBf16) => Precision::PureBf16,
        (Sharding::Zero { .. } | Sharding::Fsdp, Precision::AmpFp16) => Precision::PureFp16,
        (_, precision) => precision,
    };
    Run { precision, ..run.clone() }
}

/// Whether weights are stored in buffers of the sharding, and parameters have no memory of their own.
pub(crate) fn has_weights(run: &Run) -> bool {
    matches!(run.sharding, Sharding::Zero { .. } | Sharding::Fsdp) && run.method == Method::Full
}

/// What can't be done of several cards and the host.
pub(crate) fn check(run: &Run) -> Result<(), Cannot> {
    let divides = matches!(run.sharding, Sharding::Zero { stage: 3.. } | Sharding::Fsdp);
    match run.offload.weights && !divides {
        true => Err(Cannot::NotModeled("weights are offloaded by ZeRO-3 and FSDP only".to_owned())),
        false => Ok(()),
    }
}

/// How a run is divided. `trained`: all parameters that are.
pub(crate) fn build(rt: &Rt, model: &ModelConfig, run: &Run, trained: &[Tensor], bound: Bound) -> Rc<dyn Division> {
    match run.sharding {
        Sharding::Zero { stage: stage @ ..=2 } => zero::build(rt, model, run, trained, stage, bound),
        Sharding::Zero { .. } => zero3::build(rt, model, run, trained, bound),
        Sharding::Fsdp => fsdp::build(rt, run, trained, bound),
        Sharding::Ddp { bucket, views } if run.cards > 1 => ddp::build(rt, run, trained, bucket, views),
        Sharding::None | Sharding::Ddp { .. } if run.offload.optimizer => Rc::new(host::Updated::new(trained)),
        Sharding::None | Sharding::Ddp { .. } if run.updates_in_backward => {
            trained.iter().for_each(|parameter| update_when_complete(rt, run, parameter));
            Rc::new(Updated)
        }
        Sharding::None | Sharding::Ddp { .. } => Rc::new(Whole { trained: trained.to_vec() }),
    }
}

/// Whether a run frees gradients in the backward pass in a way that is not modeled: not on one card by the card itself.
pub(crate) fn frees_gradients_elsewhere(run: &Run) -> bool {
    run.updates_in_backward && (is_parallel(run) || run.offload.optimizer || has_weights(run))
}

/// Gives a parameter an optimizer of its own, which updates it when its gradient is complete, and frees the gradient.
/// Source: torchtune 0.6, `training/memory.py`, `register_optim_in_bwd_hooks`.
fn update_when_complete(rt: &Rt, run: &Run, parameter: &Tensor) {
    let Some(leaf) = parameter.leaf() else { return };
    let optimizer = RefCell::new(optimizers::build(run));
    let (rt, updated) = (rt.clone(), parameter.clone());
    let hook = move |_: &_| {
        optimizer.borrow_mut().step(&rt, std::slice::from_ref(&updated));
        drop(taken_gradient(&updated));
    };
    *leaf.hook.borrow_mut() = Some(Rc::new(hook));
}

/// Lets go of what a division holds of the tape, so that nothing holds itself.
pub(crate) fn release(rt: &Rt, trained: &[Tensor]) {
    drop(rt.units.take());
    for parameter in trained {
        parameter.leaf().into_iter().for_each(|leaf| drop(leaf.hook.take()));
    }
}

/// Sizes of tensors in elements.
fn elements(tensors: &[Tensor]) -> u64 {
    tensors.iter().map(Tensor::elements).sum()
}

/// A flat tensor of so many elements.
fn flat(rt: &Rt, elements: u64, dtype: DType, op: &'static str) -> Tensor {
    rt.fusion.without(|| Tensor::new(rt, &[elements], dtype, op))
}
