//! The rectifier and its gradient. What is not a number is not at most zero, and so goes through.

use super::parallel::{self, CHUNK};
use super::vectorize::vectorized;
use crate::call::Call;
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};

pub(super) fn run(mut call: Call) {
    let x = call.f32_unless_in_output(0);
    let [y] = call.take_outputs();
    let elements = 2 * y.len();
    let parts = y.par_chunks_mut(CHUNK);
    match x {
        Some(x) => parallel::for_each(elements, parts.zip(x.par_chunks(CHUNK)), |(y, x)| forward(y, x)),
        None => parallel::for_each(elements, parts, forward_in_place),
    }
}

pub(super) fn run_grad(mut call: Call) {
    let operands = [0, 1].map(|index| call.f32_unless_in_output(index));
    let [dx] = call.take_outputs();
    let elements = 3 * dx.len();
    let parts = dx.par_chunks_mut(CHUNK);
    match operands {
        [Some(dy), Some(y)] => {
            let parts = parts.zip(dy.par_chunks(CHUNK)).zip(y.par_chunks(CHUNK));
            parallel::for_each(elements, parts, |((dx, dy), y)| backward(dx, dy, y));
        }
        [None, Some(y)] => parallel::for_each(elements, parts.zip(y.par_chunks(CHUNK)), |(dx, y)| {
            backward_in_dy(dx, y);
        }),
        [Some(dy), None] => parallel::for_each(elements, parts.zip(dy.par_chunks(CHUNK)), |(dx, dy)| {
            backward_in_y(dx, dy);
        }),
        [None, None] => panic!("only one operand of a gradient can lie in its output"),
    }
}

vectorized! {
    fn forward<S: Simd>(simd: S, y: &mut [f32], x: &[f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = if x <= 0.0 { 0.0 } else { x };
        }
    }

    fn forward_in_place<S: Simd>(simd: S, x: &mut [f32]) {
        for x in x {
            *x = if *x <= 0.0 { 0.0 } else { *x };
        }
    }

    fn backward<S: Simd>(simd: S, dx: &mut [f32], dy: &[f32], y: &[f32]) {
        for ((dx, &dy), &y) in dx.iter_mut().zip(dy).zip(y) {
            *dx = if y <= 0.0 { 0.0 } else { dy };
        }
    }

    /// Leaves dx where dy is.
    fn backward_in_dy<S: Simd>(simd: S, dy: &mut [f32], y: &[f32]) {
        for (dy, &y) in dy.iter_mut().zip(y) {
            *dy = if y <= 0.0 { 0.0 } else { *dy };
        }
    }

    /// Leaves dx where y is.
    fn backward_in_y<S: Simd>(simd: S, y: &mut [f32], dy: &[f32]) {
        for (y, &dy) in y.iter_mut().zip(dy) {
            *y = if *y <= 0.0 { 0.0 } else { dy };
        }
    }
}
