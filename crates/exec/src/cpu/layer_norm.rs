//! Layer normalisation and its gradient: a row stays in the first-level cache for all passes over it.

use super::add::accumulate;
use super::math::{mul_add, sum};
use super::parallel;
use super::vectorize::vectorized;
use crate::call::Call;
use graph::ops::{self, ROW_PARTS};
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
    fn reduce<const FMA: bool>(&self, dy: &[f32], sums: &mut [f32]) -> [f32; 2] {
        let Row { x, weight, mean, rstd } = *self;
        let scale = 1.0 / x.len() as f32;
        let upstream = scale * sum([dy, weight], |[dy, weight]| dy * weight);
        let along = scale * sum([dy, weight, x], |[dy, weight, x]| dy * weight * ((x - mean) * rstd));
        let (dweight, dbias) = sums.split_at_mut(x.len());
        for ((dweight, &dy), &x) in dweight.iter_mut().zip(dy).zip(x) {
            *dweight = mul_add::<FMA>(dy, (x - mean) * rstd, *dweight);
        }
        for (dbias, &dy) in dbias.iter_mut().zip(dy) {
            *dbias += dy;
        }
        // dx = rstd · (weight·dy - upstream - x̂·along), with x̂ = (x - mean)·rstd.
        let second = rstd * rstd * along;
        [mul_add::<FMA>(-mean, second, rstd * upstream), second]
    }
}

vectorized! {
    /// Writes a row and returns its mean and reciprocal deviation.
    fn normalize<const FMA: bool>(y: &mut [f32], x: &[f32], weight: &[f32], bias: Option<&[f32]>, eps: f32) -> [f32; 2] {
        let scale = 1.0 / x.len() as f32;
        let mean = scale * sum([x], |[x]| x);
        let variance = scale * sum([x], |[x]| (x - mean) * (x - mean));
        let rstd = 1.0 / (variance + eps).sqrt();
        match bias {
            Some(bias) => {
                for (((y, &x), &weight), &bias) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                    *y = mul_add::<FMA>((x - mean) * rstd, weight, bias);
                }
            }
            None => {
                for ((y, &x), &weight) in y.iter_mut().zip(x).zip(weight) {
                    *y = (x - mean) * rstd * weight;
                }
            }
        }
        [mean, rstd]
    }

    /// Adds a row's gradient to what dx holds.
    fn add_input_gradient<const FMA: bool>(dx: &mut [f32], dy: &[f32], row: &Row, sums: &mut [f32]) {
        let [first, second] = row.reduce::<FMA>(dy, sums);
        for (((dx, &dy), &x), &weight) in dx.iter_mut().zip(dy).zip(row.x).zip(row.weight) {
            *dx += mul_add::<FMA>(row.rstd * weight, dy, -mul_add::<FMA>(second, x, first));
        }
    }

    /// Replaces dy, which dx holds, by the row's gradient.
    fn replace_by_input_gradient<const FMA: bool>(dx: &mut [f32], row: &Row, sums: &mut [f32]) {
        let [first, second] = row.reduce::<FMA>(dx, sums);
        for ((dx, &x), &weight) in dx.iter_mut().zip(row.x).zip(row.weight) {
            *dx = mul_add::<FMA>(row.rstd * weight, *dx, -mul_add::<FMA>(second, x, first));
        }
    }
}
