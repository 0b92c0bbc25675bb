//! The moving average of the weights.

use super::half::widen;
use super::math::mul_add;
use super::parallel::{self, CHUNK};
use super::vectorize::vectorized;
use crate::call::{Call, Input};
use plimsoll_graph::ops;
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};

pub(super) fn run(op: &ops::MovingAverage, mut call: Call) {
    if call.f32(1)[0].is_nan() {
        return;
    }
    let (weight, dtype) = (call.inputs[0], call.io.inputs[0].dtype);
    let [average] = call.take_outputs();
    let elements = 2 * average.len();
    match weight {
        Input::Raw(bytes) => {
            let parts = average.par_chunks_mut(CHUNK).zip(bytes.par_chunks(2 * CHUNK));
            parallel::for_each(elements, parts, |(average, bytes)| {
                let mut weight = [0.0; CHUNK];
                let weight = &mut weight[..average.len()];
                widen(dtype, bytes, weight);
                approach(average, weight, op.decay);
            });
        }
        _ => {
            let parts = average.par_chunks_mut(CHUNK).zip(call.f32(0).par_chunks(CHUNK));
            parallel::for_each(elements, parts, |(average, weight)| approach(average, weight, op.decay));
        }
    }
}

vectorized! {
    fn approach<S: Simd>(simd: S, average: &mut [f32], weight: &[f32], decay: f32) {
        for (average, &weight) in average.iter_mut().zip(weight) {
            *average = mul_add::<S>(1.0 - decay, weight - *average, *average);
        }
    }
}
