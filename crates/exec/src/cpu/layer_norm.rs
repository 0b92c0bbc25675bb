//! Layer normalization and its gradient: a row stays in the first-level cache during all passes over it.

use super::CpuKernel;
use super::half::Float;
use super::math::{mul_add, sum};
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

impl CpuKernel for ops::LayerNorm {
    fn run(&self, call: Call) {
        in_precision!(call, run(self, call));
    }
}

fn run<E: Float>(op: &ops::LayerNorm, mut call: Call) {
    let (x, weight) = (operand::<E>(&call, 0), operand::<E>(&call, 1));
    let bias = if op.bias { operand::<E>(&call, 2) } else { &[] };
    let channels = weight.len();
    let (y, statistics) = split_results::<E>(&mut call);
    let mut statistics = statistics.map(bytemuck::cast_slice_mut::<u8, f32>);
    let [mean, rstd] = [(); 2].map(|()| statistics.next().expect("a mean and a deviation"));
    let (weight, scratch) = widened_row(weight, call.take_scratch());
    let (bias, tiles) = widened_row(bias, scratch);
    let bias = op.bias.then_some(bias);
    let slots = Slots::new::<E>(tiles, 2 * channels, call.threads);
    let rows = rows_of_chunk(channels);
    let parts = y
        .par_chunks_mut(rows * channels)
        .zip(x.par_chunks(rows * channels))
        .zip(mean.par_chunks_mut(rows).zip(rstd.par_chunks_mut(rows)));
    parallel::for_each(2 * x.len(), parts, |((y, x), (mean, rstd))| {
        slots.with_slot(|tiles| {
            let rows = y.chunks_exact_mut(channels).zip(x.chunks_exact(channels)).zip(mean.iter_mut().zip(rstd));
            for ((y, x), (mean, rstd)) in rows {
                in_tiles(tiles, [y], [Some(x)], |[y], [x]| {
                    [*mean, *rstd] = normalize(y, x.expect("x shares no memory with an output"), weight, bias, op.eps);
                });
            }
        });
    });
}

impl CpuKernel for ops::LayerNormGrad {
    fn run(&self, call: Call) {
        in_precision!(call, run_grad(self, call));
    }
}

fn run_grad<E: Float>(op: &ops::LayerNormGrad, mut call: Call) {
    let dy = operand_unless_in_output::<E>(&call, 0);
    let (x, weight, mean, rstd) = (operand::<E>(&call, 1), operand::<E>(&call, 2), call.f32(3), call.f32(4));
    let residual = if op.residual { operand_unless_in_output::<E>(&call, 5) } else { None };
    assert!(dy.is_some() || !op.residual || residual.is_some(), "dx can overwrite dy or the residual, not both");
    let (rows, channels) = (mean.len(), weight.len());
    let (dx, outputs) = split_results::<E>(&mut call);
    let outputs = outputs.map(bytemuck::cast_slice_mut::<u8, f32>);
    let part_rows = rows.div_ceil(Target::CPU_ROW_PARTS);
    let part_sums = if op.bias { 2 * channels } else { channels };
    let (sums, scratch) = call.take_scratch().split_at_mut(Target::CPU_ROW_PARTS * part_sums);
    let (weight, tiles) = widened_row(weight, scratch);
    let slots = Slots::new::<E>(tiles, (if op.residual { 4 } else { 3 }) * channels, call.threads);
    let parts = dx.par_chunks_mut(part_rows * channels).zip(sums.par_chunks_exact_mut(part_sums)).enumerate();
    parallel::for_each(4 * x.len(), parts, |(part, (dx, sums))| {
        sums.fill(0.0);
        slots.with_slot(|tiles| {
            for (row, dx) in (part * part_rows..).zip(dx.chunks_exact_mut(channels)) {
                let elements = row * channels..(row + 1) * channels;
                let [dy, residual] = [dy, residual].map(|operand| operand.map(|operand| &operand[elements.clone()]));
                let (x, mean, rstd) = (Some(&x[elements]), mean[row], rstd[row]);
                let mut gradient = |dx: &mut [f32], [dy, x, residual]: [Option<&[f32]>; 3]| {
                    let add_to_output = op.residual && residual.is_none();
                    let x = x.expect("x shares no memory with an output");
                    input_gradient(dx, dy, &Row { x, weight, mean, rstd, residual, add_to_output }, sums);
                };
                if op.residual {
                    in_tiles(tiles, [dx], [dy, x, residual], |[dx], operands| gradient(dx, operands));
                } else {
                    in_tiles(tiles, [dx], [dy, x], |[dx], [dy, x]| gradient(dx, [dy, x, None]));
                }
            }
        });
    });
    let used = rows.div_ceil(part_rows);
    // Both are summed in the same pass.
    let made = [op.weight, op.bias].into_iter().enumerate().filter(|(_, made)| *made);
    for ((index, _), total) in made.zip(outputs) {
        if !op.accumulate {
            total.fill(0.0);
        }
        for part in sums.chunks_exact(part_sums).take(used) {
            accumulate(total, &part[index * channels..][..channels]);
        }
    }
}

/// The inputs of a row's gradient other than dy.
struct Row<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    mean: f32,
    rstd: f32,
    /// Added to dx.
    residual: Option<&'a [f32]>,
    /// Whether dx is added to the previous values.
    add_to_output: bool,
}

impl Row<'_> {
    /// Adds to the sums of dweight, and dbias if they are long enough to hold it. Returns what [`Self::slope`] takes.
    #[inline(always)]
    fn reduce<S: Simd>(&self, simd: S, dy: &[f32], sums: &mut [f32]) -> [f32; 2] {
        let (dweight, dbias) = sums.split_at_mut(self.x.len());
        for (dbias, &dy) in dbias.iter_mut().zip(dy) {
            *dbias += dy;
        }
        let statistics = [simd.splat_f32s(self.mean), simd.splat_f32s(self.rstd)];
        let mut sums = [simd.splat_f32s(0.0); 2];
        let ((dy, dy_rest), (x, x_rest)) = (S::as_simd_f32s(dy), S::as_simd_f32s(self.x));
        let ((weight, weight_rest), (dweight, dweight_rest)) =
            (S::as_simd_f32s(self.weight), S::as_mut_simd_f32s(dweight));
        for (((dweight, &dy), &weight), &x) in dweight.iter_mut().zip(dy).zip(weight).zip(x) {
            *dweight = reduce_vector(simd, &mut sums, statistics, [dy, weight, x, *dweight]);
        }
        if !dy_rest.is_empty() {
            // Missing lanes of a partial load are zero in dy, so they add nothing.
            let (dy, weight) = (simd.partial_load_f32s(dy_rest), simd.partial_load_f32s(weight_rest));
            let last = [dy, weight, simd.partial_load_f32s(x_rest), simd.partial_load_f32s(dweight_rest)];
            simd.partial_store_f32s(dweight_rest, reduce_vector(simd, &mut sums, statistics, last));
        }

        let scale = 1.0 / self.x.len() as f32;
        let upstream = scale * simd.reduce_sum_f32s(sums[0]);
        let along = scale * simd.reduce_sum_f32s(sums[1]);
        // dx = rstd · (weight·dy - upstream - x̂·along).
        let second = self.rstd * self.rstd * along;
        [mul_add::<S>(-self.mean, second, self.rstd * upstream), second]
    }

    /// An element of dx = rstd·weight·dy - (first + second·x).
    #[inline(always)]
    fn slope<S: Simd>(&self, [first, second]: [f32; 2], dy: f32, x: f32, weight: f32) -> f32 {
        mul_add::<S>(self.rstd * weight, dy, -mul_add::<S>(second, x, first))
    }
}

/// Σ (x - mean)².
#[inline(always)]
fn squared_distance<S: Simd>(simd: S, x: &[f32], mean: f32) -> f32 {
    let (vectors, rest) = S::as_simd_f32s(x);
    let center = simd.splat_f32s(mean);
    let mut sums = [simd.splat_f32s(0.0); 2];
    let (pairs, last) = vectors.as_chunks::<2>();
    for &[a, b] in pairs {
        let (a, b) = (simd.sub_f32s(a, center), simd.sub_f32s(b, center));
        sums = [simd.mul_add_e_f32s(a, a, sums[0]), simd.mul_add_e_f32s(b, b, sums[1])];
    }
    for &x in last {
        let x = simd.sub_f32s(x, center);
        sums[0] = simd.mul_add_e_f32s(x, x, sums[0]);
    }
    let rest = rest.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>();
    simd.reduce_sum_f32s(simd.add_f32s(sums[0], sums[1])) + rest
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
        let variance = scale * squared_distance(simd, x, mean);
        let rstd = 1.0 / (variance + eps).sqrt();
        match bias {
            Some(bias) => {
                for (((y, &x), &weight), &bias) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                    *y = mul_add::<S>((x - mean) * rstd, weight, bias);
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

    /// Writes a row of dx; if dy is `None`, dx replaces it. The memory is written once, and read before only if
    /// necessary: loads that wait for stores to distant memory would double the time.
    fn input_gradient<S: Simd>(simd: S, dx: &mut [f32], dy: Option<&[f32]>, row: &Row, sums: &mut [f32]) {
        let factors = row.reduce(simd, dy.unwrap_or(dx), sums);
        let operands = row.x.iter().zip(row.weight);
        match (dy, row.residual) {
            (Some(dy), _) if row.add_to_output => {
                for ((dx, &dy), (&x, &weight)) in dx.iter_mut().zip(dy).zip(operands) {
                    *dx += row.slope::<S>(factors, dy, x, weight);
                }
            }
            (Some(dy), None) => {
                for ((dx, &dy), (&x, &weight)) in dx.iter_mut().zip(dy).zip(operands) {
                    *dx = row.slope::<S>(factors, dy, x, weight);
                }
            }
            (Some(dy), Some(residual)) => {
                for (((dx, &dy), (&x, &weight)), &residual) in dx.iter_mut().zip(dy).zip(operands).zip(residual) {
                    *dx = residual + row.slope::<S>(factors, dy, x, weight);
                }
            }
            (None, None) => {
                for (dx, (&x, &weight)) in dx.iter_mut().zip(operands) {
                    *dx = row.slope::<S>(factors, *dx, x, weight);
                }
            }
            (None, Some(residual)) => {
                for ((dx, (&x, &weight)), &residual) in dx.iter_mut().zip(operands).zip(residual) {
                    *dx = residual + row.slope::<S>(factors, *dx, x, weight);
                }
            }
        }
    }
}
