//! Launches of `kernels/gelu.cu`.

use super::{CudaKernel, elementwise};
use crate::cuda::launch::{Operands, Part};
use plimsoll_graph::ops::{Gelu, GeluGrad};

impl CudaKernel for Gelu {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        elementwise::parts("gelu", "gelu", operands, &[])
    }
}

impl CudaKernel for GeluGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        elementwise::parts("gelu", "gelu_grad", operands, &[])
    }
}
