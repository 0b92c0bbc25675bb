//! Layer normalisation and its gradient: a row stays in the first-level cache for all passes over it.

use super::add::accumulate;
use super::math::{dot, mul_add, sum};
use super::parallel;
use super::vectorize::vectorized;
use crate::call::Call;
use graph::ops::{self, ROW_PARTS};
use pulp::Simd;
use rayon::iter::{IndexedParallelIterator, IntoParallelRefMutIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};

pub(super) fn run(op: &ops::LayerNorm, mut call: Call) {
    let (x, weight) = (call.f32(0), call.f32(1));
    let bias = op.bias.then(|| call.f32(2));
    let channels = weight.len();
    let [y, mean, rstd] = call.take_outputs();
    let rows = y
        .par_chunks_exact_mut(channels)
        .zip(x.par_chunks_exact(channels))
        .zip(mean.par_iter_mut().zip(rstd.par_iter_mut()));
    parallel::for_each(2 * x.len(), rows, |((y, x), (mean, rstd))| {
        [*mean, *rstd] = normalize(y, x, weight, bias, op.eps);
    });
}

pub(super) fn run_grad(op: &ops::LayerNormGrad, mut call: Call) {
    let dy = call.f32_unless_in_output(0);
    let (x, weight, mean, rstd) = (call.f32(1), call.f32(2), call.f32(3), call.f32(4));
    let residual = if op.residual { call.f32_unless_in_output(5) } else { None };
    let residual_in_output = op.residual && residual.is_none();
    assert!(dy.is_some() || !residual_in_output, "dx can take the place of dy or of the residual, not of both");
    let channels = weight.len();
    let rows = mean.len();
    let mut outputs = std::mem::take(&mut call.outputs).into_iter();
    let dx = outputs.next().expect("a gradient has outputs");
    let sums = call.take_scratch();
    let part_rows = rows.div_ceil(ROW_PARTS);
    let part_sums = if op.bias { 2 * channels } else { channels };
    let parts = dx.par_chunks_mut(part_rows * channels).zip(sums.par_chunks_exact_mut(part_sums)).enumerate();
    parallel::for_each(4 * x.len(), parts, |(part, (dx, sums))| {
        sums.fill(0.0);
        for (offset, dx) in dx.chunks_exact_mut(channels).enumerate() {
            let row = part * part_rows + offset;
            let elements = row * channels..(row + 1) * channels;
            let x = Row { x: &x[elements.clone()], weight, mean: mean[row], rstd: rstd[row] };
            match (dy, residual) {
                (Some(dy), residual) => {
                    match residual {
                        Some(residual) => dx.copy_from_slice(&residual[elements.clone()]),
                        None if !residual_in_output => dx.fill(0.0),
                        None => {}
                    }
                    add_input_gradient(dx, &dy[elements], &x, sums);
                }
                (None, residual) => {
                    replace_by_input_gradient(dx, &x, sums);
                    if let Some(residual) = residual {
                        accumulate(dx, &residual[elements]);
                    }
                }
            }
        }
    });
    let used = rows.div_ceil(part_rows);
    for (index, total) in outputs.enumerate() {
        if !op.accumulate {
            total.fill(0.0);
        }
        for part in sums.chunks_exact(part_sums).take(used) {
            accumulate(total, &part[index * channels..][..channels]);
        }
    }
}

/// What the gradient of a row needs besides dy.
struct Row<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    mean: f32,
    rstd: f32,
}

impl Row<'_> {
    /// Adds to the sums of dweight, and dbias if they are long enough to hold it. Returns two factors with which
    /// dx = rstd·weight·dy - (first + second·x).
    #[inline(always)]
    fn reduce<S: Simd>(&self, simd: S, dy: &[f32], sums: &mut [f32]) -> [f32; 2] {
        let (dweight, dbias) = sums.split_at_mut(self.x.len());
        for (dbias, &dy) in dbias.iter_mut().zip(dy) {
            *dbias += dy;
        }
        let statistics = [simd.splat_f32s(self.mean), simd.splat_f32s(self.rstd)];
        let mut sums = [simd.splat_f32s(0.0); 2];
        let [(dy, dy_rest), (weight, weight_rest), (x, x_rest)] = [dy, self.weight, self.x].map(S::as_simd_f32s);
        let (dweight, dweight_rest) = S::as_mut_simd_f32s(dweight);
        for (((dweight, &dy), &weight), &x) in dweight.iter_mut().zip(dy).zip(weight).zip(x) {
            *dweight = reduce_vector(simd, &mut sums, statistics, [dy, weight, x, *dweight]);
        }
        // What a partial load leaves out is zero in dy, and so adds nothing.
        let [dy, weight, x] = [dy_rest, weight_rest, x_rest].map(|rest| simd.partial_load_f32s(rest));
        let last = [dy, weight, x, simd.partial_load_f32s(dweight_rest)];
        simd.partial_store_f32s(dweight_rest, reduce_vector(simd, &mut sums, statistics, last));

        let scale = 1.0 / self.x.len() as f32;
        let [upstream, along] = sums.map(|sum| scale * simd.reduce_sum_f32s(sum));
        // dx = rstd · (weight·dy - upstream - x̂·along).
        let second = self.rstd * self.rstd * along;
        [mul_add::<S>(-self.mean, second, self.rstd * upstream), second]
    }
}

/// Adds the terms of Σ weight·dy and Σ weight·dy·x̂, with x̂ = (x - mean)·rstd. Returns the new sums of dweight.
#[inline(always)]
fn reduce_vector<S: Simd>(
    simd: S,
    sums: &mut [S::f32s; 2],
    [mean, rstd]: [S::f32s; 2],
    [dy, weight, x, dweight]: [S::f32s; 4],
) -> S::f32s {
    let slope = simd.mul_f32s(dy, weight);
    let normed = simd.mul_f32s(simd.sub_f32s(x, mean), rstd);
    *sums = [simd.add_f32s(sums[0], slope), simd.mul_add_e_f32s(slope, normed, sums[1])];
    simd.mul_add_e_f32s(dy, normed, dweight)
}

vectorized! {
    /// Writes a row and returns its mean and reciprocal deviation.
    fn normalize<S: Simd>(
        simd: S,
        y: &mut [f32],
        x: &[f32],
        weight: &[f32],
        bias: Option<&[f32]>,
        eps: f32,
    ) -> [f32; 2] {
        let scale = 1.0 / x.len() as f32;
        let mean = scale * sum(simd, x);
        for (y, &x) in y.iter_mut().zip(x) {
            *y = x - mean;
        }
        let variance = scale * dot(simd, y, y);
        let rstd = 1.0 / (variance + eps).sqrt();
        match bias {
            Some(bias) => {
                for ((y, &weight), &bias) in y.iter_mut().zip(weight).zip(bias) {
                    *y = mul_add::<S>(*y * rstd, weight, bias);
                }
            }
            None => {
                for (y, &weight) in y.iter_mut().zip(weight) {
                    *y = *y * rstd * weight;
                }
            }
        }
        [mean, rstd]
    }

    /// Adds a row's gradient to what dx holds.
    fn add_input_gradient<S: Simd>(simd: S, dx: &mut [f32], dy: &[f32], row: &Row, sums: &mut [f32]) {
        let [first, second] = row.reduce(simd, dy, sums);
        for (((dx, &dy), &x), &weight) in dx.iter_mut().zip(dy).zip(row.x).zip(row.weight) {
            *dx += mul_add::<S>(row.rstd * weight, dy, -mul_add::<S>(second, x, first));
        }
    }

    /// Replaces dy, which dx holds, by the row's gradient.
    fn replace_by_input_gradient<S: Simd>(simd: S, dx: &mut [f32], row: &Row, sums: &mut [f32]) {
        let [first, second] = row.reduce(simd, dx, sums);
        for ((dx, &x), &weight) in dx.iter_mut().zip(row.x).zip(row.weight) {
            *dx = mul_add::<S>(row.rstd * weight, *dx, -mul_add::<S>(second, x, first));
        }
    }
}
