//! Launches of `kernels/dispatch.cu`.

use super::CudaKernel;
use super::shape::{THREADS, in_vectors, launch, line, named, threads_of_row};
use crate::cuda::launch::{Arguments, Launch, Operands, Part};
use plimsoll_graph::TensorType;
use plimsoll_graph::ops::{Combine, CombineWeightGrad, Dispatch};

/// A block for each token of these places, with rows like `row`.
fn blocks(kernel: &str, row: &TensorType, places: &TensorType, threads: u32, arguments: Arguments) -> Vec<Part> {
    let kernel = if in_vectors(row) { format!("{kernel}_vectors") } else { kernel.to_owned() };
    let arguments = arguments.int(row.columns()).int(places.columns());
    let launch = launch("dispatch", named(&kernel, row), line(places.rows()), arguments);
    vec![Launch { threads, ..launch }.into()]
}

/// The first operand, places, weights if there are any, and the result.
fn weighted(kernel: &str, is_weighted: bool, operands: &Operands) -> Vec<Part> {
    let (row, places) = (operands.io.inputs[0], operands.io.inputs[1]);
    let weights = if is_weighted { operands.inputs[2] } else { 0 };
    let arguments = Arguments::default().addresses(&operands.inputs[..2]).addresses(&[weights, operands.outputs[0]]);
    blocks(kernel, row, places, threads_of_row(row), arguments)
}

impl CudaKernel for Dispatch {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        weighted("dispatch", self.weighted, operands)
    }
}

impl CudaKernel for Combine {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        weighted("combine", self.weighted, operands)
    }
}

impl CudaKernel for CombineWeightGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let (x, places) = (operands.io.inputs[0], operands.io.inputs[2]);
        let arguments = Arguments::default().addresses(&operands.inputs).addresses(&operands.outputs);
        blocks("combine_weight_grad", x, places, THREADS, arguments)
    }
}
