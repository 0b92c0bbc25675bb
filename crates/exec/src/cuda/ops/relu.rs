//! Launches of `kernels/relu.cu`.

use super::{CudaKernel, elementwise};
use crate::cuda::launch::{Operands, Part};
use plimsoll_graph::ops::{Relu, ReluGrad};

impl CudaKernel for Relu {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        elementwise::parts("relu", "relu", operands, &[])
    }
}

impl CudaKernel for ReluGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        elementwise::parts("relu", "relu_grad", operands, &[])
    }
}
