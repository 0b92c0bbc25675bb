//! Launches of `kernels/rms_norm.cu`.

use super::CudaKernel;
use super::norms::{grad, rows};
use crate::cuda::launch::{Arguments, Operands, Part};
use plimsoll_graph::ops::{RmsNorm, RmsNormGrad};

impl CudaKernel for RmsNorm {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let x = operands.io.inputs[0];
        let arguments = Arguments::default()
            .addresses(&operands.inputs)
            .addresses(&operands.outputs)
            .int(x.columns())
            .float(self.eps);
        rows("rms_norm", x, arguments)
    }
}

impl CudaKernel for RmsNormGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let x = operands.io.inputs[1];
        let residual = if self.residual { operands.inputs[4] } else { 0 };
        let wanted = operands.outputs[1..].iter().map(|&result| (0, result)).collect::<Vec<_>>();
        let partial = if wanted.is_empty() { 0 } else { operands.scratch.address };
        let arguments = Arguments::default()
            .addresses(&operands.inputs[..4])
            .addresses(&[residual, operands.outputs[0], partial])
            .int(x.rows())
            .int(x.columns());
        grad("rms_norm", operands, 1, &wanted, self.accumulate, arguments)
    }
}
