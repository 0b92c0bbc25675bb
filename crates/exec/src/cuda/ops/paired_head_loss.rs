//! The output head with the loss of two draws, as [`Head`] launches it.

use super::CudaKernel;
use super::head_loss::{Gradients, Head};
use crate::cuda::launch::{Operands, Part};
use plimsoll_graph::ops::{PairedHeadLoss, PairedHeadLossGrad};

impl CudaKernel for PairedHeadLoss {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        Head {
            operands,
            chunk: self.chunk,
            smoothing: self.smoothing,
            cap: self.cap,
            alpha: Some(self.alpha),
            has_adapter: self.adapter,
            gradients: Gradients::default(),
            accumulate_loss: false,
            accumulate: false,
            rows: None,
        }
        .parts()
    }
}

impl CudaKernel for PairedHeadLossGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        Head {
            operands,
            chunk: self.chunk,
            smoothing: self.smoothing,
            cap: self.cap,
            alpha: Some(self.alpha),
            has_adapter: self.adapter.is_some(),
            gradients: Gradients::of(&self.requested(), 2, &operands.outputs[1..]),
            accumulate_loss: self.accumulate_loss,
            accumulate: self.accumulate,
            rows: None,
        }
        .parts()
    }
}
