//! The rectifier and its gradient. NaN is not at most zero, so it passes through.

use super::CpuKernel;
use super::half::Float;
use super::tiles::{for_each_chunk, in_precision, operand_unless_in_output, results};
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::ops;

impl CpuKernel for ops::Relu {
    fn run(&self, call: Call) {
        in_precision!(call, run(call));
    }
}

fn run<E: Float>(mut call: Call) {
    let x = operand_unless_in_output::<E>(&call, 0);
    let [y] = results(&mut call);
    for_each_chunk(2 * y.len(), y, [x], |y, [x]| match x {
        Some(x) => forward(y, x),
        None => forward_in_place(y),
    });
}

impl CpuKernel for ops::ReluGrad {
    fn run(&self, call: Call) {
        in_precision!(call, run_grad(call));
    }
}

fn run_grad<E: Float>(mut call: Call) {
    let operands = [0, 1].map(|index| operand_unless_in_output::<E>(&call, index));
    let [dx] = results(&mut call);
    for_each_chunk(3 * dx.len(), dx, operands, |dx, operands| match operands {
        [Some(dy), Some(y)] => backward(dx, dy, y),
        [None, Some(y)] => backward_in_dy(dx, y),
        [Some(dy), None] => backward_in_y(dx, dy),
        [None, None] => panic!("only one operand of a gradient can share the memory of its output"),
    });
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

    /// Replaces dy by dx.
    fn backward_in_dy<S: Simd>(simd: S, dy: &mut [f32], y: &[f32]) {
        for (dy, &y) in dy.iter_mut().zip(y) {
            *dy = if y <= 0.0 { 0.0 } else { *dy };
        }
    }

    /// Replaces y by dx.
    fn backward_in_y<S: Simd>(simd: S, y: &mut [f32], dy: &[f32]) {
        for (y, &dy) in y.iter_mut().zip(dy) {
            *y = if *y <= 0.0 { 0.0 } else { dy };
        }
    }
}
