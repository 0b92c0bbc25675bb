//! Root-mean-square normalization and its gradient. A row, which is a group of channels, stays in the first-level cache
//! during all passes over it.

use super::CpuKernel;
use super::half::Float;
use super::math::{dot, update};
use super::parallel;
use super::sums::accumulate;
use super::tiles::{
    Slots, in_precision, in_tiles, operand, operand_unless_in_output, rows_of_chunk, split_results, widened_row,
};
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::{Target, ops};
use pulp::Simd;
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};

impl CpuKernel for ops::RmsNorm {
    fn run(&self, call: Call) {
        in_precision!(call, run(self, call));
    }
}

fn run<E: Float>(op: &ops::RmsNorm, mut call: Call) {
    let (x, weight) = (operand::<E>(&call, 0), operand::<E>(&call, 1));
    let channels = weight.len();
    let (y, mut outputs) = split_results::<E>(&mut call);
    let rstd = bytemuck::cast_slice_mut::<u8, f32>(outputs.next().expect("a deviation"));
    let (factors, tiles) = factors(op.unit_offset, weight, call.take_scratch());
    let slots = Slots::new::<E>(tiles, 2 * channels, call.threads);
    let rows = rows_of_chunk(channels);
    let parts = y.par_chunks_mut(rows * channels).zip(x.par_chunks(rows * channels)).zip(rstd.par_chunks_mut(rows));
    parallel::for_each(2 * x.len(), parts, |((y, x), rstd)| {
        slots.with_slot(|tiles| {
            for ((y, x), rstd) in y.chunks_exact_mut(channels).zip(x.chunks_exact(channels)).zip(rstd) {
                in_tiles(tiles, [y], [Some(x)], |[y], [x]| {
                    *rstd = normalize(y, x.expect("x shares no memory with an output"), factors, op.eps);
                });
            }
        });
    });
}

impl CpuKernel for ops::RmsNormGrad {
    fn run(&self, call: Call) {
        in_precision!(call, run_grad(self, call));
    }
}

fn run_grad<E: Float>(op: &ops::RmsNormGrad, mut call: Call) {
    let dy = operand_unless_in_output::<E>(&call, 0);
    let (x, weight, rstd) = (operand::<E>(&call, 1), operand::<E>(&call, 2), call.f32(3));
    let residual = if op.residual { operand_unless_in_output::<E>(&call, 4) } else { None };
    assert!(dy.is_some() || !op.residual || residual.is_some(), "dx can overwrite dy or the residual, not both");
    let (rows, channels) = (rstd.len(), weight.len());
    let (dx, outputs) = split_results::<E>(&mut call);
    let dweight = outputs.map(bytemuck::cast_slice_mut::<u8, f32>).next();
    let part_rows = rows.div_ceil(Target::CPU_ROW_PARTS);
    let (sums, scratch) = call.take_scratch().split_at_mut(Target::CPU_ROW_PARTS * channels);
    let (weight, tiles) = factors(op.unit_offset, weight, scratch);
    let slots = Slots::new::<E>(tiles, (if op.residual { 4 } else { 3 }) * channels, call.threads);
    let parts = dx.par_chunks_mut(part_rows * channels).zip(sums.par_chunks_exact_mut(channels)).enumerate();
    parallel::for_each(4 * x.len(), parts, |(part, (dx, sums))| {
        sums.fill(0.0);
        slots.with_slot(|tiles| {
            for (row, dx) in (part * part_rows..).zip(dx.chunks_exact_mut(channels)) {
                let elements = row * channels..(row + 1) * channels;
                let [dy, residual] = [dy, residual].map(|operand| operand.map(|operand| &operand[elements.clone()]));
                let (x, rstd) = (Some(&x[elements]), rstd[row]);
                let mut gradient = |dx: &mut [f32], [dy, x, residual]: [Option<&[f32]>; 3]| {
                    let add_to_output = op.residual && residual.is_none();
                    let x = x.expect("x shares no memory with an output");
                    input_gradient(dx, dy, &Row { x, weight, rstd, residual, add_to_output }, sums);
                };
                if op.residual {
                    in_tiles(tiles, [dx], [dy, x, residual], |[dx], operands| gradient(dx, operands));
                } else {
                    in_tiles(tiles, [dx], [dy, x], |[dx], [dy, x]| gradient(dx, [dy, x, None]));
                }
            }
        });
    });
    let Some(dweight) = dweight else { return };
    if !op.accumulate {
        dweight.fill(0.0);
    }
    for part in sums.chunks_exact(channels).take(rows.div_ceil(part_rows)) {
        accumulate(dweight, part);
    }
}

/// The factors of normalized channels in single precision, which is the weight, or 1 + weight in scratch memory; and
/// the rest of the memory.
fn factors<'a, E: Float>(unit_offset: bool, weight: &'a [E], scratch: &'a mut [f32]) -> (&'a [f32], &'a mut [f32]) {
    if !unit_offset {
        return widened_row(weight, scratch);
    }
    let (factors, rest) = scratch.split_at_mut(weight.len());
    E::widen(weight, factors);
    factors.iter_mut().for_each(|factor| *factor += 1.0);
    (factors, rest)
}

/// The inputs of a row's gradient other than dy.
struct Row<'a> {
    x: &'a [f32],
    /// The factors of normalized channels.
    weight: &'a [f32],
    rstd: f32,
    /// Added to dx.
    residual: Option<&'a [f32]>,
    /// Whether dx is added to the previous values.
    add_to_output: bool,
}

/// Adds dy·x·rstd to the sums of dweight and returns Σ weight·dy·x.
#[inline(always)]
fn reduce<S: Simd>(simd: S, dy: &[f32], row: &Row, dweight: &mut [f32]) -> f32 {
    let rstd = simd.splat_f32s(row.rstd);
    let mut sum = simd.splat_f32s(0.0);
    let ((dy, dy_rest), (x, x_rest)) = (S::as_simd_f32s(dy), S::as_simd_f32s(row.x));
    let (weight, weight_rest) = S::as_simd_f32s(row.weight);
    let (dweight, dweight_rest) = S::as_mut_simd_f32s(dweight);
    for (((dweight, &dy), &weight), &x) in dweight.iter_mut().zip(dy).zip(weight).zip(x) {
        let product = simd.mul_f32s(dy, x);
        sum = simd.mul_add_e_f32s(product, weight, sum);
        *dweight = simd.mul_add_e_f32s(product, rstd, *dweight);
    }
    if !dy_rest.is_empty() {
        // Missing lanes of a partial load are zero, so they add nothing.
        let product = simd.mul_f32s(simd.partial_load_f32s(dy_rest), simd.partial_load_f32s(x_rest));
        sum = simd.mul_add_e_f32s(product, simd.partial_load_f32s(weight_rest), sum);
        let total = simd.mul_add_e_f32s(product, rstd, simd.partial_load_f32s(dweight_rest));
        simd.partial_store_f32s(dweight_rest, total);
    }
    simd.reduce_sum_f32s(sum)
}

/// rstd·weight·dy - along·x, where `factors` are rstd and along.
#[inline(always)]
fn slope<S: Simd>(simd: S, factors: [S::f32s; 2], dy: S::f32s, x: S::f32s, weight: S::f32s) -> S::f32s {
    let [rstd, along] = factors;
    simd.sub_f32s(simd.mul_f32s(simd.mul_f32s(rstd, weight), dy), simd.mul_f32s(along, x))
}

vectorized! {
    /// Writes a row and returns its reciprocal deviation.
    fn normalize<S: Simd>(simd: S, y: &mut [f32], x: &[f32], weight: &[f32], eps: f32) -> f32 {
        let rstd = 1.0 / (dot(simd, x, x) / x.len() as f32 + eps).sqrt();
        for ((y, &x), &weight) in y.iter_mut().zip(x).zip(weight) {
            *y = x * rstd * weight;
        }
        rstd
    }

    /// Writes a row of dx; if dy is `None`, dx replaces it.
    fn input_gradient<S: Simd>(simd: S, dx: &mut [f32], dy: Option<&[f32]>, row: &Row, dweight: &mut [f32]) {
        let (x, weight) = (row.x, row.weight);
        let mean_product = reduce(simd, dy.unwrap_or(dx), row, dweight) / x.len() as f32;
        let factors = [row.rstd, row.rstd * row.rstd * row.rstd * mean_product].map(|factor| simd.splat_f32s(factor));
        match (dy, row.residual) {
            (Some(dy), _) if row.add_to_output => {
                update!(simd, [dx, dy, x, weight], simd.add_f32s(dx, slope(simd, factors, dy, x, weight)));
            }
            (Some(dy), None) => update!(simd, [dx, dy, x, weight], slope(simd, factors, dy, x, weight)),
            (Some(dy), Some(other)) => {
                update!(simd, [dx, dy, x, weight, other], simd.add_f32s(other, slope(simd, factors, dy, x, weight)));
            }
            (None, None) => update!(simd, [dx, x, weight], slope(simd, factors, dx, x, weight)),
            (None, Some(other)) => {
                update!(simd, [dx, x, weight, other], simd.add_f32s(other, slope(simd, factors, dx, x, weight)));
            }
        }
    }
}
