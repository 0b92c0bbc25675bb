//! Runs on several cards, or with parts in the host's memory: what is stored where, and the buffers for transfers. One
//! file per method. Not here: the model's computation (`modules/`), the optimizer's state (`optimizers/`).
//!
//! ```text
//!   DDP            weights, gradients, state: whole    + a copy of the gradients, in buckets
//!   ZeRO 1 and 2   weights: whole; gradients (2), fp32 weights, state: a part    + a bucket
//!   ZeRO 3, FSDP   all: a part    + weights and gradients of the running block
//! ```

mod ddp;
mod fsdp;
mod host;
#[cfg(test)]
mod tests;
mod units;
mod zero;
mod zero3;

pub(crate) use units::{Units, with_hooks};

use crate::estimate::Cannot;
use crate::optimizers::{self, Stepper, clip};
use crate::runtime::{DType, Rt, Tensor};
use plimsoll_graph::models::ModelConfig;
use plimsoll_trainers::{Method, Precision, Run, Sharding};
use std::cell::RefCell;
use std::rc::Rc;

/// The variant of a step to simulate if transfers overlap with computation or a setting is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bound {
    Least,
    Likely,
    Most,
}

/// The work around passes and updates.
pub(crate) trait Division {
    /// Runs before the forward pass of a micro-batch. `is_last`: its backward pass sends gradients.
    fn begin(&self, _: &Rt, _is_last: bool) {}

    /// Runs after the backward pass of a micro-batch.
    fn end(&self, _: &Rt, _is_last: bool) {}

    /// Runs the optimizer's step and the work around it.
    fn update(&self, rt: &Rt, optimizer: &mut dyn Stepper, clips: bool);
}

/// Everything on one card.
struct Whole {
    trained: Vec<Tensor>,
    /// Whether gradients stay allocated between steps.
    keeps_gradients: bool,
}

impl Division for Whole {
    fn update(&self, rt: &Rt, optimizer: &mut dyn Stepper, clips: bool) {
        match self.keeps_gradients {
            true => run_optimizer(rt, &self.trained, optimizer, clips),
            false => update(rt, &self.trained, optimizer, clips),
        }
    }
}

/// Everything on one card, updated in the backward pass.
struct Updated;

impl Division for Updated {
    fn update(&self, _: &Rt, _: &mut dyn Stepper, _: bool) {}
}

/// Clips gradients, runs the optimizer, and frees gradients.
fn update(rt: &Rt, trained: &[Tensor], optimizer: &mut dyn Stepper, clips: bool) {
    run_optimizer(rt, trained, optimizer, clips);
    clear(trained);
}

/// Clips gradients and runs the optimizer.
fn run_optimizer(rt: &Rt, trained: &[Tensor], optimizer: &mut dyn Stepper, clips: bool) {
    if clips {
        clip(rt, trained);
    }
    optimizer.step(rt, trained);
}

fn clear(trained: &[Tensor]) {
    for parameter in trained {
        drop(taken_gradient(parameter));
    }
}

fn taken_gradient(parameter: &Tensor) -> Option<Tensor> {
    parameter.leaf().and_then(|leaf| leaf.grad.borrow_mut().take())
}

/// Whether the run uses several cards, with a process for each.
pub(crate) fn is_parallel(run: &Run) -> bool {
    run.cards > 1 && run.sharding != Sharding::None
}

/// Whether memory depends on overlap or on unknown settings.
pub(crate) fn is_uncertain(run: &Run) -> bool {
    run.compiles || matches!(run.sharding, Sharding::Zero { .. } | Sharding::Fsdp)
}

/// The run as the modules see it. With mixed precision, DeepSpeed and FSDP cast weights; DeepSpeed does not use
/// autocast.
/// Source: `DeepSpeedEngine._configure_distributed_model`; accelerate's
/// `FullyShardedDataParallelPlugin.set_mixed_precision`.
pub(crate) fn as_computed(run: &Run) -> Run {
    let precision = match (run.sharding, run.precision) {
        (Sharding::Zero { .. } | Sharding::Fsdp, Precision::AmpBf16) => Precision::PureBf16,
        (Sharding::Zero { .. } | Sharding::Fsdp, Precision::AmpFp16) => Precision::PureFp16,
        (_, precision) => precision,
    };
    Run { precision, ..run.clone() }
}

/// Whether sharding stores weights in its own buffers, so that parameters have no memory.
pub(crate) fn has_weights(run: &Run) -> bool {
    matches!(run.sharding, Sharding::Zero { .. } | Sharding::Fsdp) && run.method == Method::Full
}

/// Rejects impossible combinations of sharding and offloading.
pub(crate) fn check(run: &Run) -> Result<(), Cannot> {
    let divides = matches!(run.sharding, Sharding::Zero { stage: 3.. } | Sharding::Fsdp);
    match run.offload.weights && !divides {
        true => Err(Cannot::NotModeled("weights can be offloaded by ZeRO-3 and FSDP only".to_owned())),
        false => Ok(()),
    }
}

/// The sharding of a run. `trained`: all trained parameters.
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
        Sharding::None | Sharding::Ddp { .. } => {
            Rc::new(Whole { trained: trained.to_vec(), keeps_gradients: run.custom_loop.keeps_gradients })
        }
    }
}

/// Whether a run frees gradients in the backward pass in a way that is not modeled: only one card without offloading
/// is.
pub(crate) fn frees_gradients_elsewhere(run: &Run) -> bool {
    run.updates_in_backward && (is_parallel(run) || run.offload.optimizer || has_weights(run))
}

/// Whether the run keeps gradients between steps in a way that is not modeled: only one card without offloading or
/// updates in the backward pass is.
pub(crate) fn keeps_gradients_elsewhere(run: &Run) -> bool {
    let is_modeled = !is_parallel(run) && !run.offload.optimizer && !run.updates_in_backward && !has_weights(run);
    run.custom_loop.keeps_gradients && !is_modeled
}

/// Gives a parameter its own optimizer, which updates it when its gradient is complete and then frees the gradient.
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

/// Drops the sharding's references to the tape, which would otherwise be a cycle.
pub(crate) fn release(rt: &Rt, trained: &[Tensor]) {
    drop(rt.units.take());
    for parameter in trained {
        parameter.leaf().into_iter().for_each(|leaf| drop(leaf.hook.take()));
    }
}

/// Number of elements of all tensors.
fn elements(tensors: &[Tensor]) -> u64 {
    tensors.iter().map(Tensor::elements).sum()
}

/// A flat tensor with this many elements.
fn flat(rt: &Rt, elements: u64, dtype: DType, op: &'static str) -> Tensor {
    rt.fusion.without(|| Tensor::new(rt, &[elements], dtype, op))
}
