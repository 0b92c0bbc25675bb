//! Launches of `kernels/exact_gelu.cu`.

use super::{CudaKernel, elementwise};
use crate::cuda::launch::{Operands, Part};
use plimsoll_graph::ops::{ExactGelu, ExactGeluGrad};

impl CudaKernel for ExactGelu {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        elementwise::parts("exact_gelu", "exact_gelu", operands, &[])
    }
}

impl CudaKernel for ExactGeluGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        elementwise::parts("exact_gelu", "exact_gelu_grad", operands, &[])
    }
}
