//! Launches of `kernels/clamped_swiglu.cu`.

use super::CudaKernel;
use super::shape::{launch, named, vectors};
use crate::cuda::launch::{Arguments, Operands, Part};
use plimsoll_graph::TensorType;
use plimsoll_graph::ops::{ClampedSwiglu, ClampedSwigluGrad};

impl CudaKernel for ClampedSwiglu {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        parts(self, "clamped_swiglu", operands.io.inputs[0], operands)
    }
}

impl CudaKernel for ClampedSwigluGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        parts(&self.forward, "clamped_swiglu_grad", operands.io.inputs[1], operands)
    }
}

/// A thread for each vector of x.
fn parts(op: &ClampedSwiglu, kernel: &str, x: &TensorType, operands: &Operands) -> Vec<Part> {
    let arguments = Arguments::default().addresses(&operands.inputs).addresses(&operands.outputs);
    let arguments = arguments.long(x.elements() as u64 / 2).float(op.alpha).float(op.limit);
    vec![launch("clamped_swiglu", named(kernel, x), vectors(x), arguments).into()]
}
