//! Launches of `kernels/grad_norm.cu`: the squares of each operand by blocks, and their sum, which is added to the total.
//! The total is in scratch, after the blocks of the largest operand.

use super::CudaKernel;
use super::shape::{launch, line};
use crate::cuda::launch::{Arguments, Operands, Part};
use plimsoll_graph::TensorType;
use plimsoll_graph::ops::{GradNorm, NORM_BLOCK};

impl CudaKernel for GradNorm {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let counts = operands.io.inputs.iter().map(|ty| ty.elements().div_ceil(NORM_BLOCK)).collect::<Vec<_>>();
        let (sums, last) = (operands.scratch.address, counts.len() - 1);
        let total = sums + 8 * counts.iter().max().copied().unwrap_or(0) as u64;
        let of_operand = |(index, (&gradient, ty)): (usize, (&u64, &&TensorType))| {
            let squares = Arguments::default().addresses(&[gradient, sums]).long(ty.elements() as u64).int(NORM_BLOCK);
            let join = Arguments::default()
                .addresses(&[sums, total, operands.outputs[0]])
                .int(counts[index])
                .flag(index == 0)
                .flag(index == last);
            [
                launch("grad_norm", "grad_norm_squares", line(counts[index]), squares).into(),
                launch("grad_norm", "grad_norm_join", line(1), join).into(),
            ]
        };
        operands.inputs.iter().zip(&operands.io.inputs).enumerate().flat_map(of_operand).collect()
    }
}
