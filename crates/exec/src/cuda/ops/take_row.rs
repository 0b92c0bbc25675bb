//! Launches of `kernels/take_row.cu`.

use super::CudaKernel;
use super::shape::{launch, line, row_bytes};
use crate::cuda::launch::{Arguments, Operands, Part};
use plimsoll_graph::ops::TakeRow;

impl CudaKernel for TakeRow {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let x = operands.io.inputs[0];
        let arguments = Arguments::default()
            .addresses(&[operands.inputs[0], operands.outputs[0], operands.scalars])
            .long(x.shape[1] as u64)
            .long(row_bytes(x));
        vec![launch("take_row", "take_row", line(x.shape[0]), arguments).into()]
    }
}
