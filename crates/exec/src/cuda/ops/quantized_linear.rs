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

/// Part of a weight that a card decodes.
pub(super) struct Decoded {
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
    /// The bounds of each expert's rows, or zero if there are no experts: weights of an expert without rows stay undecoded.
    pub(super) bounds: u64,
}

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
            codes: None,
            extents: [x.rows(), columns.len(), inner],
            accumulate: false,
            parts: InnerParts::whole(inner),
            partial: 0,
        };
        let part = Decoded { rows, columns: of_row, bounds: 0 };
        [decode(operands, codes, &part).into(), product.part(operands)]
    });
    parts.collect()
}

/// Decodes some rows and columns of the weight into scratch; the rows of an expert follow those of the one before.
pub(super) fn decode(operands: &Operands, codes: WeightCodes, Decoded { rows, columns, bounds }: &Decoded) -> Launch {
    let x = operands.io.inputs[0];
    let shape = codes.shape(operands.io.inputs[1]);
    let [of_matrix, stride] = [2, 1].map(|from_last| shape[shape.len() - from_last]);
    let place = Arguments::default()
        .address(*bounds)
        .long(stride as u64)
        .int(of_matrix)
        .int(rows.start)
        .int(columns.start)
        .int(rows.len())
        .int(columns.len());
    let arguments = Arguments::default()
        .addresses(&operands.inputs[1..2 + codes.scale_count()])
        .address(operands.scratch.address)
        .record(&place);
    let (kernel, arguments) = match codes {
        WeightCodes::Nf4 => ("decode_nf4", arguments.floats(&[&LEVELS[..], scale_levels()].concat())),
        WeightCodes::Int8 => ("decode_int8", arguments),
    };
    launch("quantized_linear", named(kernel, x), blocks(rows.len() * columns.len(), vector(x)), arguments)
}
