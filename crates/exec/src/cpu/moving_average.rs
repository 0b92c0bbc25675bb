//! The moving average of the weights.

use super::CpuKernel;
use super::half::widen;
use super::math::mul_add;
use super::parallel::{self, CHUNK};
use super::remainder::join;
use super::vectorize::vectorized;
use crate::call::{Call, Input};
use ::half::bf16;
use plimsoll_graph::ops;
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};

impl CpuKernel for ops::MovingAverage {
    fn run(&self, mut call: Call) {
        if call.f32(1)[0].is_nan() {
            return;
        }
        let (weight, dtype) = (call.inputs[0], call.io.inputs[0].dtype);
        let [average] = call.take_outputs();
        let elements = 2 * average.len();
        match (weight, call.inputs.get(2)) {
            (Input::Raw(weight), Some(Input::Raw(remainder))) => {
                let (weight, remainder) =
                    (bytemuck::cast_slice::<_, bf16>(weight), bytemuck::cast_slice::<_, i16>(remainder));
                let parts =
                    weight.par_chunks(CHUNK).zip(remainder.par_chunks(CHUNK)).zip(average.par_chunks_mut(CHUNK));
                parallel::for_each(elements, parts, |((weight, remainder), average)| {
                    let mut whole = [0.0; CHUNK];
                    let whole = &mut whole[..average.len()];
                    join(weight, remainder, whole);
                    approach(average, whole, self.decay);
                });
            }
            (Input::Raw(bytes), _) => {
                let parts = average.par_chunks_mut(CHUNK).zip(bytes.par_chunks(2 * CHUNK));
                parallel::for_each(elements, parts, |(average, bytes)| {
                    let mut weight = [0.0; CHUNK];
                    let weight = &mut weight[..average.len()];
                    widen(dtype, bytes, weight);
                    approach(average, weight, self.decay);
                });
            }
            _ => {
                let parts = average.par_chunks_mut(CHUNK).zip(call.f32(0).par_chunks(CHUNK));
                parallel::for_each(elements, parts, |(average, weight)| approach(average, weight, self.decay));
            }
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
