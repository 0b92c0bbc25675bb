//! Optimizers: their state, created in the first step, and the temporary tensors of a step.
//! Not here: parameters and their gradients (`runtime/`).

mod adafactor;
mod adamw;
mod eight_bit;
mod sgd;

use crate::runtime::{DType, Rt, Tensor};
use crate::usage::Kind;
use plimsoll_trainers::{Optimizer, Run};

/// An optimizer with its state.
pub(crate) trait Stepper {
    /// Runs a step over parameters with their gradients.
    fn step(&mut self, rt: &Rt, parameters: &[Tensor]);
}

/// The optimizer of a run.
pub(crate) fn build(run: &Run) -> Box<dyn Stepper> {
    match run.optimizer {
        Optimizer::AdamWForeach => Box::new(adamw::AdamW::new(adamw::How::Foreach)),
        Optimizer::AdamWForLoop => Box::new(adamw::AdamW::new(adamw::How::ForLoop)),
        Optimizer::AdamWFused => Box::new(adamw::AdamW::new(adamw::How::Fused)),
        Optimizer::AdamW8bit => Box::new(eight_bit::AdamW::new(8, false)),
        Optimizer::PagedAdamW8bit => Box::new(eight_bit::AdamW::new(8, true)),
        Optimizer::PagedAdamW => Box::new(eight_bit::AdamW::new(32, true)),
        Optimizer::Adafactor => Box::new(adafactor::Adafactor::default()),
        Optimizer::Sgd { momentum } => Box::new(sgd::Sgd::new(momentum)),
    }
}

/// Creates a tensor of the optimizer's state.
fn state(rt: &Rt, shape: &[u64], dtype: DType, name: &'static str) -> Tensor {
    let state = Tensor::new(rt, shape, dtype, name);
    state.mark(Kind::OptimizerState);
    state
}

/// The gradient of a parameter, if it has one.
fn gradient(parameter: &Tensor) -> Option<Tensor> {
    parameter.leaf().and_then(|leaf| leaf.grad.borrow().clone())
}

/// `clip_grad_norm_`: one norm per gradient, collected in one tensor.
pub(crate) fn clip(rt: &Rt, parameters: &[Tensor]) {
    let gradients = parameters.iter().filter_map(gradient).collect::<Vec<_>>();
    let Some(first) = gradients.first() else { return };
    let norm = || Tensor::new(rt, &[], first.dtype(), "_foreach_norm");
    let norms = gradients.iter().map(|_| norm()).collect::<Vec<_>>();
    let all = Tensor::new(rt, &[gradients.len() as u64], first.dtype(), "stack");
    let total = norm();
    drop((all, norms));
    drop(total);
}
