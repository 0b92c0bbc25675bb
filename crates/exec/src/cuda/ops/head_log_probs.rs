//! Launches of `kernels/head_log_probs.cu`, between those of `head_loss.rs`.

use super::CudaKernel;
use super::head_loss::{Head, Rows};
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
            inputs: None,
            weight: None,
            accumulate_loss: false,
            accumulate: false,
            rows: Some(Rows::Sums { split: self.split }),
        }
        .parts()
    }
}

impl CudaKernel for HeadLogProbsGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        Head {
            operands,
            chunk: self.chunk,
            smoothing: 0.0,
            cap: self.cap,
            alpha: None,
            inputs: self.input.then(|| &operands.outputs[..1]),
            weight: operands.outputs.last().copied().filter(|_| self.weight),
            accumulate_loss: false,
            accumulate: self.accumulate,
            rows: Some(Rows::Slopes { address: operands.inputs[3], split: self.split }),
        }
        .parts()
    }
}
