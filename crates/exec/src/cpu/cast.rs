//! Rounding to another precision, and widening.

use super::CpuKernel;
use super::half::{narrow, widen};
use super::parallel::{self, CHUNK};
use super::remainder;
use crate::call::{Call, Input, Output};
use ::half::bf16;
use plimsoll_graph::DType;
use plimsoll_graph::ops;
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};

impl CpuKernel for ops::Cast {
    fn run(&self, mut call: Call) {
        let (from, to) = (call.io.inputs[0].dtype, call.io.outputs[0].dtype);
        let output = call.outputs.pop().expect("a cast has a result");
        match (call.inputs[0], output) {
            (Input::F32(x), Output::F32(y)) => parallel::copy(y, x),
            (Input::F32(x), Output::Raw(y)) if to == DType::Bf16 => round_weights(x, bytemuck::cast_slice_mut(y)),
            (Input::F32(x), Output::Raw(y)) => narrow(to, x, y),
            (Input::Raw(x), Output::F32(y)) => widen(from, x, y),
            (x, y) => panic!("{x:?} is not cast to {y:?}: a model has one half precision"),
        }
    }
}

/// Ties round away from zero, as the op specifies.
fn round_weights(x: &[f32], y: &mut [bf16]) {
    let parts = x.par_chunks(CHUNK).zip(y.par_chunks_mut(CHUNK));
    parallel::for_each(2 * x.len(), parts, |(x, y)| remainder::round(x, y));
}
