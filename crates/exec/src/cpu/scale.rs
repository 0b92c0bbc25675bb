//! A tensor times a constant.

use super::half::Float;
use super::tiles::{for_each_chunk, operand_unless_in_output, results};
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::ops;

pub(super) fn run<E: Float>(op: &ops::Scale, mut call: Call) {
    let x = operand_unless_in_output::<E>(&call, 0);
    let [y] = results(&mut call);
    for_each_chunk(2 * y.len(), y, [x], |y, [x]| match x {
        Some(x) => scaled(y, x, op.factor),
        None => scale(y, op.factor),
    });
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
