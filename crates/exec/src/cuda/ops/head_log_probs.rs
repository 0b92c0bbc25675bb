//! Launches of `kernels/head_log_probs.cu`, between those of `head_loss.rs`.

use super::CudaKernel;
use super::head_loss::{Gradients, Head, Rows};
use crate::cuda::launch::{Operands, Part};
use plimsoll_graph::ops::{HeadLogProbs, HeadLogProbsGrad};

impl CudaKernel for HeadLogProbs {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        Head {
            operands,
            chunk: self.chunk,
            smoothing: 0.0,
            cap: self.cap,
            alpha: None,
            has_adapter: self.adapter,
            gradients: Gradients::default(),
            accumulate_loss: false,
            accumulate: false,
            rows: Some(Rows::Sums { split: self.split }),
        }
        .parts()
    }
}

impl CudaKernel for HeadLogProbsGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let slopes = if self.adapter.is_some() { 5 } else { 3 };
        Head {
            operands,
            chunk: self.chunk,
            smoothing: 0.0,
            cap: self.cap,
            alpha: None,
            has_adapter: self.adapter.is_some(),
            gradients: Gradients::of(&self.requested(), 1, &operands.outputs),
            accumulate_loss: false,
            accumulate: self.accumulate,
            rows: Some(Rows::Slopes { address: operands.inputs[slopes], split: self.split }),
        }
        .parts()
    }
}
