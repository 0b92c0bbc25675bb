//! Launches of `kernels/transfer.cu`.

use super::CudaKernel;
use super::shape::{launch, line};
use crate::cuda::launch::{Arguments, Launch, Operands, Part};
use plimsoll_graph::ops::Transfer;

/// Bytes per block: `BLOCK_BYTES` of `transfer.cu`.
const BLOCK_BYTES: usize = 1 << 16;

impl CudaKernel for Transfer {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        vec![copy_operand(operands).into()]
    }
}

/// Copies the first operand to the first result.
pub(super) fn copy_operand(operands: &Operands) -> Launch {
    let bytes = operands.io.outputs[0].bytes().0;
    let arguments = Arguments::default().addresses(&[operands.inputs[0], operands.outputs[0]]).long(bytes);
    launch("transfer", "transfer", line((bytes as usize).div_ceil(BLOCK_BYTES)), arguments)
}
