//! An optimizer in the host's memory: gradients are copied to it, weights are copied back, and no state is on the card.

use super::{Division, clear};
use crate::optimizers::{Stepper, clip};
use crate::runtime::{Rt, Tensor};

/// All weights on one card, updated by the host.
pub(super) struct Updated {
    trained: Vec<Tensor>,
}

impl Updated {
    pub fn new(trained: &[Tensor]) -> Self {
        Self { trained: trained.to_vec() }
    }
}

impl Division for Updated {
    fn update(&self, rt: &Rt, _optimizer: &mut dyn Stepper, clips: bool) {
        update(rt, &self.trained, clips);
        clear(&self.trained);
    }
}

/// The card's memory during a step on the host.
pub(super) fn update(rt: &Rt, trained: &[Tensor], clips: bool) {
    if clips {
        clip(rt, trained);
    }
}
