//! Launches of `kernels/rms_norm.cu`. A row is a group of channels, as long as the weight.

use super::CudaKernel;
use super::norms::{grad, rows, with_joins};
use super::shape::{THREADS, WARP, in_vectors, launch, line, named, vector};
use crate::cuda::launch::{Arguments, Operands, Part};
use plimsoll_graph::ops::{RmsNorm, RmsNormGrad};
use plimsoll_graph::{Target, TensorType};

/// The logarithm of the number of lanes that process a row in kernels for short rows, which give each lane a vector;
/// `None` for other rows.
fn lane_bits(row: &TensorType) -> Option<usize> {
    let lanes = (row.columns() / vector(row)).next_power_of_two();
    (in_vectors(row) && lanes <= WARP).then(|| lanes.ilog2() as usize)
}

/// The name of the kernels for longer rows.
fn kernel(unit_offset: bool) -> &'static str {
    if unit_offset { "rms_norm_offset" } else { "rms_norm" }
}

/// The number that kernels for short rows add to the weight.
fn offset(unit_offset: bool) -> f32 {
    if unit_offset { 1.0 } else { 0.0 }
}

impl CudaKernel for RmsNorm {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let (weight, count) = (operands.io.inputs[1], operands.io.outputs[1].elements());
        let addresses = Arguments::default().addresses(&operands.inputs).addresses(&operands.outputs);
        let Some(bits) = lane_bits(weight) else {
            let arguments = addresses.int(weight.columns()).float(self.eps);
            return vec![rows("rms_norm", kernel(self.unit_offset), weight, count, arguments).into()];
        };
        let arguments = addresses.int(count).int(weight.columns()).int(bits);
        let arguments = arguments.float(self.eps).float(offset(self.unit_offset));
        let grid = line((count << bits).div_ceil(THREADS as usize));
        vec![launch("rms_norm", named("rms_norm_short", weight), grid, arguments).into()]
    }
}

impl CudaKernel for RmsNormGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let (weight, count) = (operands.io.inputs[2], operands.io.inputs[3].elements());
        let residual = if self.residual { operands.inputs[4] } else { 0 };
        let wanted = operands.outputs[1..].iter().map(|&result| (0, result)).collect::<Vec<_>>();
        let partial = if wanted.is_empty() { 0 } else { operands.scratch.address };
        let arguments = Arguments::default()
            .addresses(&operands.inputs[..4])
            .addresses(&[residual, operands.outputs[0], partial])
            .int(count)
            .int(weight.columns());
        let mut parts = Target::cuda_norm_parts(count);
        let gradient = if let Some(bits) = lane_bits(weight) {
            parts = parts.min((count << bits).div_ceil(THREADS as usize));
            let arguments = arguments.int(bits).float(offset(self.unit_offset));
            launch("rms_norm", named("rms_norm_grad_short", weight), line(parts), arguments)
        } else {
            grad("rms_norm", kernel(self.unit_offset), weight, [parts, wanted.len()], arguments)
        };
        with_joins(gradient, partial, [parts, 1, weight.columns()], &wanted, self.accumulate)
    }
}
