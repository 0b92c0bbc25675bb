//! Copies tokens to their experts' rows, and adds up the rows of each token.

use super::CpuKernel;
use super::half::Float;
use super::math::{dot, mul_add};
use super::matrix::MatrixMut;
use super::parallel;
use super::tiles::{in_precision, in_stack_tiles, operand, results, widened};
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::ops;
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};

/// Channels that are processed at a time.
const TILE: usize = 512;

impl CpuKernel for ops::Dispatch {
    fn run(&self, call: Call) {
        in_precision!(call, dispatch(self, call));
    }
}

impl CpuKernel for ops::Combine {
    fn run(&self, call: Call) {
        in_precision!(call, combine(self, call));
    }
}

impl CpuKernel for ops::CombineWeightGrad {
    fn run(&self, call: Call) {
        in_precision!(call, weight_grad(call));
    }
}

vectorized! {
    fn scale_into<S: Simd>(simd: S, y: &mut [f32], x: &[f32], factor: f32) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = x * factor;
        }
    }

    fn add_scaled<S: Simd>(simd: S, y: &mut [f32], x: &[f32], factor: f32) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = mul_add::<S>(x, factor, *y);
        }
    }

    fn product_of<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
        dot(simd, a, b)
    }
}

fn dispatch<E: Float>(op: &ops::Dispatch, mut call: Call) {
    let (x, places) = (operand::<E>(&call, 0), call.i32(1));
    let weights = op.weighted.then(|| call.f32(2));
    let (channels, chosen) = (call.io.inputs[0].columns(), call.io.inputs[1].columns());
    let [rows] = results::<E, 1>(&mut call);
    let elements = 2 * rows.len();
    // Places are in no order, so parts are ranges of channels.
    let parts = MatrixMut::new(rows, places.len(), channels).column_blocks(TILE).collect::<Vec<_>>();
    parallel::for_each(elements, parts.into_par_iter().enumerate(), |(part, mut rows)| {
        for (choice, &place) in places.iter().enumerate() {
            let row = rows.row(place as usize);
            let x = &x[choice / chosen * channels + part * TILE..][..row.len()];
            match weights {
                None => row.copy_from_slice(x),
                Some(weights) => in_stack_tiles([row], [Some(x)], |[row], [x]| {
                    scale_into(row, x.expect("rows share no memory with tokens"), weights[choice]);
                }),
            }
        }
    });
}

fn combine<E: Float>(op: &ops::Combine, mut call: Call) {
    let (rows, places) = (operand::<E>(&call, 0), call.i32(1));
    let weights = op.weighted.then(|| call.f32(2));
    let (channels, chosen) = (call.io.inputs[0].columns(), call.io.inputs[1].columns());
    let [y] = results::<E, 1>(&mut call);
    let tokens = y.par_chunks_exact_mut(channels).zip(places.par_chunks_exact(chosen)).enumerate();
    parallel::for_each(2 * rows.len(), tokens, |(token, (y, places))| {
        for (part, y) in y.chunks_mut(TILE).enumerate() {
            let (mut sums, mut tile) = ([0.0; TILE], [0.0; TILE]);
            let sums = &mut sums[..y.len()];
            for (k, &place) in places.iter().enumerate() {
                let row = &rows[place as usize * channels + part * TILE..][..sums.len()];
                match weights {
                    None => E::accumulate(row, sums),
                    Some(weights) => add_scaled(sums, widened(row, &mut tile), weights[token * chosen + k]),
                }
            }
            E::round(sums, y);
        }
    });
}

fn weight_grad<E: Float>(mut call: Call) {
    let (x, rows, places) = (operand::<E>(&call, 0), operand::<E>(&call, 1), call.i32(2));
    let (channels, chosen) = (call.io.inputs[0].columns(), call.io.inputs[2].columns());
    let [dweights] = call.take_outputs();
    let tokens = x.par_chunks_exact(channels).zip(places.par_chunks_exact(chosen));
    let tokens = tokens.zip(dweights.par_chunks_exact_mut(chosen));
    parallel::for_each(2 * rows.len(), tokens, |((x, places), dweights)| {
        dweights.fill(0.0);
        for (part, x) in x.chunks(TILE).enumerate() {
            let (mut tile, mut of_row) = ([0.0; TILE], [0.0; TILE]);
            let x = widened(x, &mut tile);
            for (dweight, &place) in dweights.iter_mut().zip(places) {
                let row = &rows[place as usize * channels + part * TILE..][..x.len()];
                *dweight += product_of(x, widened(row, &mut of_row));
            }
        }
    });
}
