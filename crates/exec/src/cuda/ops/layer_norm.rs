//! Launches of `kernels/layer_norm.cu`.

use super::CudaKernel;
use super::norms::{grad, rows, with_joins};
use crate::cuda::launch::{Arguments, Operands, Part};
use plimsoll_graph::Target;
use plimsoll_graph::ops::{LayerNorm, LayerNormGrad};

impl CudaKernel for LayerNorm {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let x = operands.io.inputs[0];
        let bias = if self.bias { operands.inputs[2] } else { 0 };
        let arguments = Arguments::default()
            .addresses(&[operands.inputs[0], operands.inputs[1], bias])
            .addresses(&operands.outputs)
            .int(x.columns())
            .float(self.eps);
        vec![rows("layer_norm", "layer_norm", operands.io.inputs[1], x.rows(), arguments).into()]
    }
}

impl CudaKernel for LayerNormGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let x = operands.io.inputs[1];
        let residual = if self.residual { operands.inputs[5] } else { 0 };
        let sums = [(self.weight, 0), (self.bias, 1)].into_iter().filter(|(made, _)| *made).map(|(_, set)| set);
        let wanted = sums.zip(operands.outputs[1..].iter().copied()).collect::<Vec<_>>();
        let partial = if wanted.is_empty() { 0 } else { operands.scratch.address };
        let arguments = Arguments::default()
            .addresses(&operands.inputs[..5])
            .addresses(&[residual, operands.outputs[0], partial])
            .int(x.rows())
            .int(x.columns())
            .flag(self.bias);
        let (parts, sets) = (Target::cuda_norm_parts(x.rows()), 1 + usize::from(self.bias));
        let made = if wanted.is_empty() { 0 } else { sets };
        let gradient = grad("layer_norm", "layer_norm", operands.io.inputs[2], [parts, made], arguments);
        with_joins(gradient, partial, [parts, sets, x.columns()], &wanted, self.accumulate)
    }
}
