//! Columns times magnitudes over norms, and the gradient.

use super::CpuKernel;
use super::half::Float;
use super::parallel;
use super::sums::accumulate;
use super::tiles::{
    Slots, in_precision, in_tiles, operand, operand_unless_in_output, results, rows_of_chunk, split_results,
    widened_row,
};
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::{Target, ops};
use rayon::iter::IndexedParallelIterator;
use rayon::slice::ParallelSliceMut;

impl CpuKernel for ops::ColumnScale {
    fn run(&self, call: Call) {
        in_precision!(call, run(self, call));
    }
}

impl CpuKernel for ops::ColumnScaleGrad {
    fn run(&self, call: Call) {
        in_precision!(call, run_grad(self, call));
    }
}

/// A number over a norm; zero if the norm is.
fn over(number: f32, norm: f32) -> f32 {
    if norm > 0.0 { number / norm } else { 0.0 }
}

/// The factors of the columns, at the beginning of the scratch memory, and the rest of the memory.
fn factors<'a>(magnitude: &[f32], norm: &[f32], scratch: &'a mut [f32]) -> (&'a [f32], &'a mut [f32]) {
    let (factors, rest) = scratch.split_at_mut(norm.len());
    for ((factor, &magnitude), &norm) in factors.iter_mut().zip(magnitude).zip(norm) {
        *factor = over(magnitude, norm);
    }
    (factors, rest)
}

fn run<E: Float>(op: &ops::ColumnScale, mut call: Call) {
    let x = operand_unless_in_output::<E>(&call, 0);
    let (magnitude, norm) = (call.f32(1), call.f32(2));
    let bias = op.bias.then(|| operand::<E>(&call, 3));
    let columns = norm.len();
    let [y] = results::<E, 1>(&mut call);
    let (factors, rest) = factors(magnitude, norm, call.take_scratch());
    let (bias, tiles) = match bias {
        Some(bias) => {
            let (bias, tiles) = widened_row(bias, rest);
            (Some(bias), tiles)
        }
        None => (None, rest),
    };
    let slots = Slots::new::<E>(tiles, 2 * columns, call.threads);
    let rows = rows_of_chunk(columns);
    let elements = y.len();
    parallel::for_each(2 * elements, y.par_chunks_mut(rows * columns).enumerate(), |(part, y)| {
        slots.with_slot(|tiles| {
            for (row, y) in (part * rows..).zip(y.chunks_exact_mut(columns)) {
                let x = x.map(|x| &x[row * columns..][..columns]);
                in_tiles(tiles, [y], [x], |[y], [x]| {
                    if let Some(x) = x {
                        y.copy_from_slice(x);
                    }
                    scale(y, factors, bias);
                });
            }
        });
    });
}

fn run_grad<E: Float>(op: &ops::ColumnScaleGrad, mut call: Call) {
    let dy = operand_unless_in_output::<E>(&call, 0);
    let (x, magnitude, norm) = (operand::<E>(&call, 1), call.f32(2), call.f32(3));
    let columns = norm.len();
    let rows = x.len() / columns;
    let (dx, outputs) = split_results::<E>(&mut call);
    let dmagnitude = outputs.map(bytemuck::cast_slice_mut::<u8, f32>).next();
    let of_sums = if op.magnitude { Target::CPU_ROW_PARTS * columns } else { 0 };
    let (sums, scratch) = call.take_scratch().split_at_mut(of_sums);
    let (factors, tiles) = factors(magnitude, norm, scratch);
    let slots = Slots::new::<E>(tiles, 3 * columns, call.threads);
    let part_rows = rows.div_ceil(Target::CPU_ROW_PARTS);
    let scale_rows = |part: usize, dx: &mut [E], mut sums: Option<&mut [f32]>| {
        slots.with_slot(|tiles| {
            for (row, dx) in (part * part_rows..).zip(dx.chunks_exact_mut(columns)) {
                let [dy, x] = [dy, Some(x)].map(|operand| operand.map(|operand| &operand[row * columns..][..columns]));
                in_tiles(tiles, [dx], [dy, x], |[dx], [dy, x]| {
                    if let Some(dy) = dy {
                        dx.copy_from_slice(dy);
                    }
                    if let Some(sums) = &mut sums {
                        accumulate_products(sums, dx, x.expect("x shares no memory with an output"));
                    }
                    scale(dx, factors, None);
                });
            }
        });
    };
    let parts = dx.par_chunks_mut(part_rows * columns).enumerate();
    let Some(dmagnitude) = dmagnitude else {
        return parallel::for_each(2 * x.len(), parts, |(part, dx)| scale_rows(part, dx, None));
    };
    parallel::for_each(3 * x.len(), parts.zip(sums.par_chunks_exact_mut(columns)), |((part, dx), sums)| {
        sums.fill(0.0);
        scale_rows(part, dx, Some(sums));
    });
    let (total, others) = sums.split_at_mut(columns);
    for part in others.chunks_exact(columns).take(rows.div_ceil(part_rows) - 1) {
        accumulate(total, part);
    }
    for ((sum, &total), &norm) in dmagnitude.iter_mut().zip(&*total).zip(norm) {
        let before = if op.accumulate { *sum } else { 0.0 };
        *sum = before + over(total, norm);
    }
}

vectorized! {
    /// A row times the factors, plus the bias.
    fn scale<S: Simd>(simd: S, y: &mut [f32], factors: &[f32], bias: Option<&[f32]>) {
        match bias {
            None => {
                for (y, &factor) in y.iter_mut().zip(factors) {
                    *y *= factor;
                }
            }
            Some(bias) => {
                for ((y, &factor), &bias) in y.iter_mut().zip(factors).zip(bias) {
                    *y = *y * factor + bias;
                }
            }
        }
    }

    /// sums += a · b.
    fn accumulate_products<S: Simd>(simd: S, sums: &mut [f32], a: &[f32], b: &[f32]) {
        for ((sum, &a), &b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
}
