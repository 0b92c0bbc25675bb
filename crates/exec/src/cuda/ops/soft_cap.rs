//! Launches of `kernels/soft_cap.cu`.

use super::{CudaKernel, elementwise};
use crate::cuda::launch::{Operands, Part};
use plimsoll_graph::ops::{SoftCap, SoftCapGrad};

impl CudaKernel for SoftCap {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        elementwise::parts("soft_cap", "soft_cap", operands, &[self.cap])
    }
}

impl CudaKernel for SoftCapGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        elementwise::parts("soft_cap", "soft_cap_grad", operands, &[self.cap])
    }
}
