//! Linear layers with factors of 8 bits: kernels that round each factor into scratch (`kernels/fp8.cu`), and a product.

use super::shape::{THREADS, blocks, launch, line, named, vector};
use super::{CudaKernel, row_sums};
use crate::cuda::launch::{Arguments, Launch, Operands, Part};
use crate::cuda::product::{Codes, Factors, Matrix, Product};
use plimsoll_graph::ops::{Fp8, Fp8Factors, Fp8Linear, InnerParts, WeightLayout};
use plimsoll_graph::{DType, Io, OLDEST_WITH_FP8};

/// `TILE` of `fp8.cu`.
const TILE: usize = 64;
/// Fewest vectors of a thread that finds the largest number of a part.
const FEWEST_VECTORS: usize = 4;

/// `enum Format` of `fp8.cu`.
fn format_number(format: Fp8) -> usize {
    match format {
        Fp8::E4m3 => 0,
        Fp8::E5m2 => 1,
    }
}

impl CudaKernel for Fp8Linear {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let factors = self.factors(&operands.io);
        let [scales, .., rest] = factors.offsets().map(|offset| operands.scratch.address + offset);
        let mut parts = [0, 1].into_iter().flat_map(|index| rounded(&factors, index, operands)).collect::<Vec<_>>();
        let codes = [3, 4].map(|place| operands.scratch.address + factors.offsets()[place]);
        let factor = |index: usize| Matrix { address: codes[index], dtype: DType::U8, stride: factors.stride() };
        let y = operands.io.outputs[0];
        let (order, bias, accumulate) = match self {
            Self::Forward(op) => ([0, 1], if op.bias { operands.inputs[2] } else { 0 }, false),
            Self::InputGrad(_) => ([0, 1], 0, false),
            Self::WeightGrad(op) if op.layout == WeightLayout::InOut => ([0, 1], 0, op.accumulate),
            Self::WeightGrad(op) => ([1, 0], 0, op.accumulate),
        };
        let extents = [factors.rows[order[0]], factors.rows[order[1]], factors.stride()];
        let product = Product {
            factors: Factors::RightTransposed,
            left: factor(order[0]),
            right: factor(order[1]),
            result: Matrix { address: operands.outputs[0], dtype: y.dtype, stride: y.columns() },
            bias,
            scaled_by: 0,
            codes: Some(Codes {
                formats: order.map(|index| factors.formats[index]),
                scales: order.map(|index| scales + 4 * index as u64),
            }),
            extents,
            accumulate,
            parts: if y.dtype == DType::F32 && matches!(self, Self::WeightGrad(_)) {
                InnerParts::of(extents)
            } else {
                InnerParts::whole(extents[2])
            },
            partial: rest,
        };
        parts.push(product.part(operands));
        if let Self::WeightGrad(op) = self
            && op.bias
        {
            let sums =
                row_sums::launches(operands.io.inputs[1], operands.inputs[1], operands.outputs[1], rest, op.accumulate);
            parts.extend(sums.into_iter().map(Part::Kernel));
        }
        parts
    }

    fn refusal(&self, _io: &Io, compute_capability: (u8, u8)) -> Option<String> {
        (compute_capability < OLDEST_WITH_FP8).then(|| {
            let (major, minor) = OLDEST_WITH_FP8;
            format!("products in 8 bits need compute capability {major}.{minor}")
        })
    }
}

/// The launches that round a factor.
fn rounded(factors: &Fp8Factors, index: usize, operands: &Operands) -> [Part; 2] {
    let (ty, from) = (operands.io.inputs[index], operands.inputs[index]);
    let offsets = factors.offsets().map(|offset| operands.scratch.address + offset);
    let (reciprocal, largest, codes) = (offsets[0] + 4 * index as u64, offsets[1 + index], offsets[3 + index]);
    let of_block = THREADS as usize * vector(ty);
    let parts = ty.elements().div_ceil(FEWEST_VECTORS * of_block).clamp(1, Fp8Factors::PARTS);
    let each = ty.elements().div_ceil(parts).next_multiple_of(of_block);
    let parts = ty.elements().div_ceil(each);
    let arguments = Arguments::default().address(from).long(ty.elements() as u64).long(each as u64).address(largest);
    let find = launch("fp8", named("fp8_largest", ty), line(parts), arguments);
    let arguments = Arguments::default().addresses(&[from, largest, codes, reciprocal]);
    let extents = |first: usize, second: usize| {
        arguments.int(first).int(second).int(factors.stride()).int(parts).int(format_number(factors.formats[index]))
    };
    let (rows, terms) = (factors.rows[index], factors.terms);
    let round: Launch = if factors.is_transposed[index] {
        let grid = line(factors.stride().div_ceil(TILE) * rows.div_ceil(TILE));
        launch("fp8", named("fp8_columns", ty), grid, extents(terms, rows))
    } else {
        let grid = blocks(rows * factors.stride(), Fp8Factors::ALIGNED);
        launch("fp8", named("fp8_rows", ty), grid, extents(rows, terms))
    };
    [find.into(), round.into()]
}
