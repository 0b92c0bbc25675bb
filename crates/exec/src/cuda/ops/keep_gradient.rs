//! Launches of `kernels/keep_gradient.cu`.

use super::CudaKernel;
use super::shape::{blocks, launch};
use crate::cuda::launch::{Arguments, Operands, Part};
use plimsoll_graph::ops::KeepGradient;

impl CudaKernel for KeepGradient {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let elements = operands.io.inputs[0].elements();
        let arguments = Arguments::default()
            .addresses(&operands.inputs)
            .addresses(&operands.outputs)
            .addresses(&[operands.scalars])
            .long(elements as u64)
            .flag(self.accumulate)
            .word(self.site);
        // A thread for each eight elements.
        vec![launch("keep_gradient", "keep_gradient", blocks(elements, 8), arguments).into()]
    }
}
