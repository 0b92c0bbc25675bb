//! PyTorch's SGD: `torch/optim/sgd.py`, with one op for all parameters.

use super::{Stepper, gradient};
use crate::runtime::{Rt, Tensor};
use crate::usage::Kind;

/// SGD, with a buffer per parameter if it has momentum.
pub(super) struct Sgd {
    momentum: bool,
    buffers: Vec<Tensor>,
}

impl Sgd {
    pub fn new(momentum: bool) -> Self {
        Self { momentum, buffers: vec![] }
    }
}

impl Stepper for Sgd {
    fn step(&mut self, _: &Rt, parameters: &[Tensor]) {
        if !self.momentum || !self.buffers.is_empty() {
            return;
        }
        let buffer = |gradient: Tensor| {
            let buffer = gradient.empty_like(gradient.dtype(), "momentum_buffer");
            buffer.mark(Kind::OptimizerState);
            buffer
        };
        self.buffers = parameters.iter().filter_map(gradient).map(buffer).collect();
    }
}
