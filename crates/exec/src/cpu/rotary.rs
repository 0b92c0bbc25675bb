//! Rotary position embeddings: cosines and sines are computed once per call, for all samples and heads.

use super::CpuKernel;
use super::half::Float;
use super::math::mul_add;
use super::parallel;
use super::tiles::{Slots, in_precision, in_tiles, operand_unless_in_output, results, rows_of_chunk};
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::ops::{self, inverse_frequencies};
use rayon::iter::IndexedParallelIterator;
use rayon::slice::ParallelSliceMut;

/// Positions whose angles are computed by rotating the previous one, which costs a tenth of a sine; in double
/// precision, this many rotations are exact to thirteen digits.
const TURNS: usize = 64;

impl CpuKernel for ops::Rotary {
    fn run(&self, call: Call) {
        in_precision!(call, run(self, call));
    }
}

fn run<E: Float>(op: &ops::Rotary, mut call: Call) {
    let x = operand_unless_in_output::<E>(&call, 0);
    let (time, channels) = (call.io.outputs[0].shape[1], call.io.outputs[0].shape[2]);
    let first = if op.offset { call.scalars.position as usize } else { 0 };
    let [y] = results(&mut call);
    let (angles, tiles) = call.take_scratch().split_at_mut(time * op.rotated);
    fill_angles(op, first, angles);
    let slots = Slots::new::<E>(tiles, 2 * channels, call.threads);
    let (elements, rows) = (2 * y.len(), rows_of_chunk(channels));
    parallel::for_each(elements, y.par_chunks_mut(rows * channels).enumerate(), |(part, y)| {
        slots.with_slot(|tiles| {
            for (row, y) in (part * rows..).zip(y.chunks_exact_mut(channels)) {
                let x = x.map(|x| &x[row * channels..][..channels]);
                in_tiles(tiles, [y], [x], |[y], [x]| {
                    if let Some(x) = x {
                        y.copy_from_slice(x);
                    }
                    turn(y, &angles[row % time * op.rotated..][..op.rotated], op.head_size);
                });
            }
        });
    });
}

/// For each position from `first` on, the cosines of its pairs' angles, then the sines, each times the scaling's
/// factor.
fn fill_angles(op: &ops::Rotary, first: usize, angles: &mut [f32]) {
    let (frequencies, factor) = inverse_frequencies(op.rotated, op.base, &op.scaling);
    let direction = if op.inverse { -1.0 } else { 1.0 };
    let elements = 8 * angles.len();
    let parts = angles.par_chunks_mut(TURNS * op.rotated).enumerate();
    parallel::for_each(elements, parts, |(part, angles)| {
        let start = (first + part * TURNS) as f64;
        for (pair, frequency) in frequencies.iter().enumerate() {
            let (step_sin, step_cos) = (direction * frequency).sin_cos();
            let (mut sin, mut cos) = (direction * start * frequency).sin_cos();
            for position in angles.chunks_exact_mut(op.rotated) {
                position[pair] = (factor * cos) as f32;
                position[frequencies.len() + pair] = (factor * sin) as f32;
                (sin, cos) = (sin * step_cos + cos * step_sin, cos * step_cos - sin * step_sin);
            }
        }
    });
}

vectorized! {
    /// Rotates the pairs of each head of a row, which are in its first channels.
    fn turn<S: Simd>(simd: S, row: &mut [f32], angles: &[f32], head_size: usize) {
        let (cos, sin) = angles.split_at(angles.len() / 2);
        for head in row.chunks_exact_mut(head_size) {
            let (a, b) = head[..angles.len()].split_at_mut(cos.len());
            for ((a, b), (&cos, &sin)) in a.iter_mut().zip(b).zip(cos.iter().zip(sin)) {
                [*a, *b] = [mul_add::<S>(*a, cos, -(*b * sin)), mul_add::<S>(*b, cos, *a * sin)];
            }
        }
    }
}
