//! Multiplication of a tensor by a constant.

use super::CpuKernel;
use super::half::Float;
use super::tiles::{for_each_chunk, in_precision, operand_unless_in_output, results};
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::ops;

impl CpuKernel for ops::Scale {
    fn run(&self, call: Call) {
        in_precision!(call, run(self, call));
    }
}

fn run<E: Float>(op: &ops::Scale, mut call: Call) {
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
