//! Launches of `kernels/column_scale.cu`.

use super::shape::{WARP, extent, in_vectors, launch, named, vector};
use super::{CudaKernel, row_sums};
use crate::cuda::launch::{Arguments, Launch, Operands, Part};
use plimsoll_graph::ops::{ColumnScale, ColumnScaleGrad};
use plimsoll_graph::{Target, TensorType};

/// Rows of a block of the forward kernel: as many for each of its warps as pay for reading the factors.
const ROWS: usize = 64;

/// A launch with a block for each part of the rows and each stretch of columns.
fn stretches(kernel: &str, x: &TensorType, parts: usize, arguments: Arguments) -> Launch {
    let (form, each) = if in_vectors(x) { ("_vectors", vector(x)) } else { ("", 1) };
    let grid = [extent(x.columns().div_ceil(WARP * each)), extent(parts), 1];
    launch("column_scale", named(&format!("{kernel}{form}"), x), grid, arguments.int(x.rows()).int(x.columns()))
}

impl CudaKernel for ColumnScale {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let x = operands.io.inputs[0];
        let bias = if self.bias { operands.inputs[3] } else { 0 };
        let arguments =
            Arguments::default().addresses(&operands.inputs[..3]).addresses(&[bias]).addresses(&operands.outputs);
        vec![stretches("column_scale", x, x.rows().div_ceil(ROWS), arguments).into()]
    }
}

impl CudaKernel for ColumnScaleGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let x = operands.io.inputs[0];
        let parts = Target::cuda_row_parts(x.rows());
        let partial = if self.magnitude { operands.scratch.address } else { 0 };
        let arguments =
            Arguments::default().addresses(&operands.inputs).addresses(&operands.outputs[..1]).addresses(&[partial]);
        let gradient = stretches("column_scale_grad", x, parts, arguments);
        let columns = x.columns();
        let join = operands.outputs.get(1);
        let join = join.map(|&sums| row_sums::join(partial, sums, parts, [columns, columns], self.accumulate));
        std::iter::once(gradient).chain(join).map(Part::Kernel).collect()
    }
}
