//! GELU with the normal distribution itself. An operand that does not share the memory of the output is copied there
//! first, which is cheap in the first-level cache.

use super::CpuKernel;
use super::gated::exact_gelu;
use super::half::Float;
use super::math::update;
use super::tiles::{for_each_chunk, in_precision, operand_unless_in_output, results};
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::ops;

impl CpuKernel for ops::ExactGelu {
    fn run(&self, call: Call) {
        in_precision!(call, run(call));
    }
}

fn run<E: Float>(mut call: Call) {
    let x = operand_unless_in_output::<E>(&call, 0);
    let [y] = results(&mut call);
    for_each_chunk(5 * y.len(), y, [x], |y, [x]| {
        if let Some(x) = x {
            y.copy_from_slice(x);
        }
        forward(y);
    });
}

impl CpuKernel for ops::ExactGeluGrad {
    fn run(&self, call: Call) {
        in_precision!(call, run_grad(call));
    }
}

fn run_grad<E: Float>(mut call: Call) {
    let operands = [0, 1].map(|index| operand_unless_in_output::<E>(&call, index));
    let [dx] = results(&mut call);
    for_each_chunk(5 * dx.len(), dx, operands, |dx, operands| match operands {
        [Some(dy), Some(x)] => {
            dx.copy_from_slice(x);
            backward_in_x(dx, dy);
        }
        [None, Some(x)] => backward_in_dy(dx, x),
        [Some(dy), None] => backward_in_x(dx, dy),
        [None, None] => panic!("only one operand of a gradient can share the memory of its output"),
    });
}

vectorized! {
    /// Replaces x by y.
    fn forward<S: Simd>(simd: S, x: &mut [f32]) {
        update!(simd, [x], exact_gelu(simd, x)[0]);
    }

    /// Replaces dy by dx.
    fn backward_in_dy<S: Simd>(simd: S, dy: &mut [f32], x: &[f32]) {
        update!(simd, [dy, x], simd.mul_f32s(dy, exact_gelu(simd, x)[1]));
    }

    /// Replaces x by dx.
    fn backward_in_x<S: Simd>(simd: S, x: &mut [f32], dy: &[f32]) {
        update!(simd, [x, dy], simd.mul_f32s(dy, exact_gelu(simd, x)[1]));
    }
}
