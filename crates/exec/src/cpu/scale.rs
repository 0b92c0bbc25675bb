//! A tensor times a constant.

use super::parallel::{self, CHUNK};
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::ops;
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};

pub(super) fn run(op: &ops::Scale, mut call: Call) {
    let x = call.f32_unless_in_output(0);
    let [y] = call.take_outputs();
    let elements = 2 * y.len();
    let parts = y.par_chunks_mut(CHUNK);
    match x {
        Some(x) => parallel::for_each(elements, parts.zip(x.par_chunks(CHUNK)), |(y, x)| scaled(y, x, op.factor)),
        None => parallel::for_each(elements, parts, |y| scale(y, op.factor)),
    }
}

vectorized! {
    fn scaled<S: Simd>(simd: S, y: &mut [f32], x: &[f32], factor: f32) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = x * factor;
        }
    }

    fn scale<S: Simd>(simd: S, x: &mut [f32], factor: f32) {
        for x in x {
            *x *= factor;
        }
    }
}
