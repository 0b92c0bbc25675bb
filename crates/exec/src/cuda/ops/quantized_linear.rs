//! Linear layers with their weight in codes: for each strip of the result's columns, a kernel that decodes its weights
//! into scratch (`kernels/quantized_linear.cu`), and a product.

use super::CudaKernel;
use super::shape::{blocks, launch, named, vector};
use crate::cuda::launch::{Arguments, Launch, Operands, Part};
use crate::cuda::product::{Factors, Matrix, Product};
use crate::weight_codes::{LEVELS, scale_levels};
use plimsoll_graph::WeightCodes;
use plimsoll_graph::ops::{InnerParts, QuantizedLinear, QuantizedLinearInputGrad, strips};
use std::ops::Range;

impl CudaKernel for QuantizedLinear {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let bias = if self.bias { operands.inputs[operands.inputs.len() - 1] } else { 0 };
        let strip = |columns: Range<usize>, inner| (columns, 0..inner);
        in_strips(operands, self.codes, Factors::RightTransposed, bias, strip)
    }
}

impl CudaKernel for QuantizedLinearInputGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let strip = |columns: Range<usize>, inner| (0..inner, columns);
        in_strips(operands, self.codes, Factors::Plain, 0, strip)
    }
}

/// The product of the first operand and the weight; `strip` returns the rows and columns of the weight for columns of
/// the result and all terms.
fn in_strips(
    operands: &Operands,
    codes: WeightCodes,
    factors: Factors,
    bias: u64,
    strip: impl Fn(Range<usize>, usize) -> (Range<usize>, Range<usize>),
) -> Vec<Part> {
    let (x, y) = (operands.io.inputs[0], operands.io.outputs[0]);
    let (inner, size) = (x.columns(), x.dtype.size_bytes());
    let parts = strips(inner, y.columns()).flat_map(|columns| {
        let before = columns.start as u64 * size;
        let (rows, of_row) = strip(columns.clone(), inner);
        let product = Product {
            factors,
            left: Matrix { address: operands.inputs[0], dtype: x.dtype, stride: inner },
            right: Matrix { address: operands.scratch.address, dtype: x.dtype, stride: of_row.len() },
            result: Matrix { address: operands.outputs[0] + before, dtype: x.dtype, stride: y.columns() },
            bias: if bias == 0 { 0 } else { bias + before },
            scaled_by: 0,
            extents: [x.rows(), columns.len(), inner],
            accumulate: false,
            parts: InnerParts::whole(inner),
            partial: 0,
        };
        [decode(operands, codes, rows, of_row).into(), product.part(operands)]
    });
    parts.collect()
}

/// Decodes some rows and columns of the weight.
fn decode(operands: &Operands, codes: WeightCodes, rows: Range<usize>, columns: Range<usize>) -> Launch {
    let x = operands.io.inputs[0];
    let [_, stride] = codes.extents(operands.io.inputs[1]);
    let place = Arguments::default()
        .long(stride as u64)
        .long(rows.start as u64)
        .long(columns.start as u64)
        .int(rows.len())
        .int(columns.len());
    let scales = codes.scales([0, 0]).len();
    let arguments = Arguments::default()
        .addresses(&operands.inputs[1..2 + scales])
        .address(operands.scratch.address)
        .record(&place);
    let (kernel, arguments) = match codes {
        WeightCodes::Nf4 => ("decode_nf4", arguments.floats(&[&LEVELS[..], scale_levels()].concat())),
        WeightCodes::Int8 => ("decode_int8", arguments),
    };
    launch("quantized_linear", named(kernel, x), blocks(rows.len() * columns.len(), vector(x)), arguments)
}
