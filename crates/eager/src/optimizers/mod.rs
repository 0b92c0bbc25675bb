//! Optimizers: their state, made in the first step, and what a step needs for a moment.

mod adamw;

use crate::runtime::{Rt, Tensor};
use plimsoll_trainers::{Optimizer, Run};

/// What an optimizer keeps and does.
pub(crate) trait Stepper {
    /// A step over parameters with their gradients.
    fn step(&mut self, rt: &Rt, parameters: &[Tensor]);
}

/// The optimizer of a run.
pub(crate) fn build(run: &Run) -> Box<dyn Stepper> {
    match run.optimizer {
        Optimizer::AdamWForeach => Box::new(adamw::AdamW::new(adamw::How::Foreach)),
        Optimizer::AdamWForLoop => Box::new(adamw::AdamW::new(adamw::How::ForLoop)),
        _ => Box::new(adamw::AdamW::new(adamw::How::Fused)),
    }
}
