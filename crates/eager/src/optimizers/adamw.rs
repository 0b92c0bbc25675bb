//! PyTorch's AdamW: `torch/optim/adam.py`.

use super::Stepper;
use crate::estimate::Kind;
use crate::runtime::{DType, Rt, Tensor};

/// How a step is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// One parameter after the other.
    ForLoop,
    /// All parameters an op.
    Foreach,
    /// One kernel.
    Fused,
}

/// AdamW with two moments a parameter.
pub(super) struct AdamW {
    how: How,
    moments: Vec<[Tensor; 2]>,
    /// Counts of steps, on the card where the kernel reads them.
    counts: Vec<Tensor>,
}

impl AdamW {
    pub fn new(how: How) -> Self {
        Self { how, moments: vec![], counts: vec![] }
    }

    fn make_state(&mut self, parameters: &[Tensor]) {
        for parameter in parameters {
            if self.how == How::Fused {
                let count = Tensor::new(parameter.rt(), &[], DType::F32, "step");
                count.mark(Kind::OptimizerState);
                self.counts.push(count);
            }
            let moment = |op| {
                let moment = parameter.empty_like(parameter.dtype(), op);
                moment.mark(Kind::OptimizerState);
                moment
            };
            self.moments.push([moment("exp_avg"), moment("exp_avg_sq")]);
        }
    }
}

impl Stepper for AdamW {
    fn step(&mut self, _: &Rt, parameters: &[Tensor]) {
        if self.moments.is_empty() {
            self.make_state(parameters);
        }
        let root = |parameter: &Tensor| parameter.empty_like(parameter.dtype(), "sqrt");
        match self.how {
            How::Fused => {}
            How::ForLoop => parameters.iter().for_each(|parameter| {
                let root = root(parameter);
                let divided = root.empty_like(root.dtype(), "div");
                drop(root);
                drop(divided);
            }),
            How::Foreach => drop(parameters.iter().map(root).collect::<Vec<_>>()),
        }
    }
}
