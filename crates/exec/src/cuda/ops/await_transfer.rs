//! Waiting for a transfer needs no kernel: a queue ends when its work is done.

use super::CudaKernel;
use crate::cuda::launch::{Operands, Part};
use plimsoll_graph::ops::AwaitTransfer;

impl CudaKernel for AwaitTransfer {
    fn parts(&self, _operands: &Operands) -> Vec<Part> {
        Vec::new()
    }
}
