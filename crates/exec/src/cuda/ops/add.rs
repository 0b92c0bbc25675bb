//! Launches of `kernels/add.cu`.

use super::{CudaKernel, elementwise};
use crate::cuda::launch::{Operands, Part};
use plimsoll_graph::ops::Add;

impl CudaKernel for Add {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        elementwise::parts("add", "add", operands, &[])
    }
}
