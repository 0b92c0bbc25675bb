//! The sum of two tensors.

use super::parallel::{self, CHUNK};
use super::vectorize::vectorized;
use crate::call::Call;
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};

pub(super) fn run(mut call: Call) {
    let operands = [0, 1].map(|index| call.f32_unless_in_output(index));
    let [y] = call.take_outputs();
    match operands {
        [Some(a), Some(b)] => {
            let parts = y.par_chunks_mut(CHUNK).zip(a.par_chunks(CHUNK)).zip(b.par_chunks(CHUNK));
            parallel::for_each(3 * a.len(), parts, |((y, a), b)| sum(y, a, b));
        }
        [Some(other), None] | [None, Some(other)] => {
            let parts = y.par_chunks_mut(CHUNK).zip(other.par_chunks(CHUNK));
            parallel::for_each(3 * other.len(), parts, |(y, other)| accumulate(y, other));
        }
        [None, None] => panic!("only one operand of a sum can lie in its output"),
    }
}

vectorized! {
    /// y = a + b.
    pub(super) fn sum<S: Simd>(simd: S, y: &mut [f32], a: &[f32], b: &[f32]) {
        for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
            *y = a + b;
        }
    }

    /// y += x, for kernels that add up gradients or rows.
    pub(super) fn accumulate<S: Simd>(simd: S, y: &mut [f32], x: &[f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y += x;
        }
    }
}
