//! Root-mean-square normalisation and its gradient: a row stays in the first-level cache for all passes over it.

use super::add::accumulate;
use super::math::{dot, update};
use super::parallel;
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::{Target, ops};
use pulp::Simd;
use rayon::iter::{IndexedParallelIterator, IntoParallelRefMutIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};

pub(super) fn run(op: &ops::RmsNorm, mut call: Call) {
    let (x, weight) = (call.f32(0), call.f32(1));
    let channels = weight.len();
    let [y, rstd] = call.take_outputs();
    let rows = y.par_chunks_exact_mut(channels).zip(x.par_chunks_exact(channels)).zip(rstd.par_iter_mut());
    parallel::for_each(2 * x.len(), rows, |((y, x), rstd)| *rstd = normalize(y, x, weight, op.eps));
}

pub(super) fn run_grad(op: &ops::RmsNormGrad, mut call: Call) {
    let dy = call.f32_unless_in_output(0);
    let (x, weight, rstd) = (call.f32(1), call.f32(2), call.f32(3));
    let residual = if op.residual { call.f32_unless_in_output(4) } else { None };
    let add_to_output = op.residual && residual.is_none();
    assert!(dy.is_some() || !add_to_output, "dx can take the place of dy or of the residual, not of both");
    let (rows, channels) = (rstd.len(), weight.len());
    let mut outputs = call.take_f32_outputs();
    let dx = outputs.next().expect("a gradient has outputs");
    let sums = call.take_scratch();
    let part_rows = rows.div_ceil(Target::CPU_ROW_PARTS);
    let parts = dx.par_chunks_mut(part_rows * channels).zip(sums.par_chunks_exact_mut(channels)).enumerate();
    parallel::for_each(4 * x.len(), parts, |(part, (dx, sums))| {
        sums.fill(0.0);
        for (offset, dx) in dx.chunks_exact_mut(channels).enumerate() {
            let row = part * part_rows + offset;
            let elements = row * channels..(row + 1) * channels;
            let [dy, residual] = [dy, residual].map(|operand| operand.map(|operand| &operand[elements.clone()]));
            let row = Row { x: &x[elements.clone()], weight, rstd: rstd[row], residual, add_to_output };
            input_gradient(dx, dy, &row, sums);
        }
    });
    let Some(dweight) = outputs.next() else { return };
    if !op.accumulate {
        dweight.fill(0.0);
    }
    for part in sums.chunks_exact(channels).take(rows.div_ceil(part_rows)) {
        accumulate(dweight, part);
    }
}

/// What the gradient of a row needs besides dy.
struct Row<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    rstd: f32,
    /// Added to dx.
    residual: Option<&'a [f32]>,
    /// Whether dx is added to what its place holds.
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
        // What a partial load leaves out is zero, and so adds nothing.
        let product = simd.mul_f32s(simd.partial_load_f32s(dy_rest), simd.partial_load_f32s(x_rest));
        sum = simd.mul_add_e_f32s(product, simd.partial_load_f32s(weight_rest), sum);
        let total = simd.mul_add_e_f32s(product, rstd, simd.partial_load_f32s(dweight_rest));
        simd.partial_store_f32s(dweight_rest, total);
    }
    simd.reduce_sum_f32s(sum)
}

/// rstd·weight·dy - along·x, of which `factors` are rstd and along.
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

    /// Writes a row of dx, where dy is if it is not given.
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
