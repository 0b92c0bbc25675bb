//! Launches of `kernels/scale.cu`.

use super::{CudaKernel, elementwise};
use crate::cuda::launch::{Operands, Part};
use plimsoll_graph::ops::Scale;

impl CudaKernel for Scale {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        elementwise::parts("scale", "scale", operands, &[self.factor])
    }
}
