//! PyTorch's AdamW: `torch/optim/adam.py`.

use super::{Stepper, state};
use crate::runtime::{DType, Rt, Tensor};

/// The implementation of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// One parameter after the other.
    ForLoop,
    /// One op for all parameters.
    Foreach,
    /// One kernel.
    Fused,
}

/// AdamW with two moments per parameter.
pub(super) struct AdamW {
    how: How,
    moments: Vec<[Tensor; 2]>,
    /// Step counts, on the card if the kernel reads them.
    counts: Vec<Tensor>,
}

impl AdamW {
    pub fn new(how: How) -> Self {
        Self { how, moments: vec![], counts: vec![] }
    }

    fn make_state(&mut self, rt: &Rt, parameters: &[Tensor]) {
        for parameter in parameters {
            if self.how == How::Fused {
                self.counts.push(state(rt, &[], DType::F32, "step"));
            }
            let moment = |name| state(rt, parameter.shape(), parameter.dtype(), name);
            self.moments.push([moment("exp_avg"), moment("exp_avg_sq")]);
        }
    }
}

impl Stepper for AdamW {
    fn step(&mut self, rt: &Rt, parameters: &[Tensor]) {
        if self.moments.is_empty() {
            self.make_state(rt, parameters);
        }
        let root = |parameter: &Tensor| parameter.empty_like(parameter.dtype(), "sqrt");
        match self.how {
            How::Fused => {}
            // Python's loop holds the last parameter's denominator until it has the next.
            How::ForLoop => drop(parameters.iter().fold(None, |_last: Option<Tensor>, parameter| {
                let root = root(parameter);
                Some(root.empty_like(root.dtype(), "div"))
            })),
            How::Foreach => drop(parameters.iter().map(root).collect::<Vec<_>>()),
        }
    }
}
