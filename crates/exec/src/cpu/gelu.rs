//! GELU in its tanh form. x/2·(1 + tanh u) is computed as x/(1 + e⁻²ᵘ), which is the same number without the
//! cancellation near tanh u = -1.

use super::CpuKernel;
use super::half::Float;
use super::math::{exp, update};
use super::tiles::{for_each_chunk, in_precision, operand_unless_in_output, results};
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::ops;
use pulp::Simd;

/// 2·√(2/π): twice the factor of x in u.
const LINEAR: f32 = 1.595_769;
/// The factor of x³ relative to that of x in u.
const CUBIC: f32 = 0.044_715;

impl CpuKernel for ops::Gelu {
    fn run(&self, call: Call) {
        in_precision!(call, run(call));
    }
}

fn run<E: Float>(mut call: Call) {
    let x = operand_unless_in_output::<E>(&call, 0);
    let [y] = results(&mut call);
    for_each_chunk(4 * y.len(), y, [x], |y, [x]| match x {
        Some(x) => forward(y, x),
        None => forward_in_place(y),
    });
}

impl CpuKernel for ops::GeluGrad {
    fn run(&self, call: Call) {
        in_precision!(call, run_grad(call));
    }
}

fn run_grad<E: Float>(mut call: Call) {
    let operands = [0, 1].map(|index| operand_unless_in_output::<E>(&call, index));
    let [dx] = results(&mut call);
    for_each_chunk(4 * dx.len(), dx, operands, |dx, operands| match operands {
        [Some(dy), Some(x)] => backward(dx, dy, x),
        [None, Some(x)] => backward_in_dy(dx, x),
        [Some(dy), None] => backward_in_x(dx, dy),
        [None, None] => panic!("only one operand of a gradient can share the memory of its output"),
    });
}

/// e⁻²ᵘ.
#[inline(always)]
fn decay<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let factor = simd.mul_add_e_f32s(simd.mul_f32s(x, x), simd.splat_f32s(-LINEAR * CUBIC), simd.splat_f32s(-LINEAR));
    exp(simd, simd.mul_f32s(x, factor))
}

#[inline(always)]
fn gelu<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    simd.div_f32s(x, simd.add_f32s(simd.splat_f32s(1.0), decay(simd, x)))
}

/// x·s and the slope, which is s + x·s·(1 - s)·2u', with s = 1/(1 + e⁻²ᵘ).
#[inline(always)]
pub(super) fn value_and_slope<S: Simd>(simd: S, x: S::f32s) -> [S::f32s; 2] {
    let s = simd.div_f32s(simd.splat_f32s(1.0), simd.add_f32s(simd.splat_f32s(1.0), decay(simd, x)));
    let inner =
        simd.mul_add_e_f32s(simd.mul_f32s(x, x), simd.splat_f32s(3.0 * LINEAR * CUBIC), simd.splat_f32s(LINEAR));
    let rest = simd.sub_f32s(s, simd.mul_f32s(s, s));
    [simd.mul_f32s(x, s), simd.mul_add_e_f32s(simd.mul_f32s(x, inner), rest, s)]
}

/// dy times the slope.
#[inline(always)]
fn gradient<S: Simd>(simd: S, dy: S::f32s, x: S::f32s) -> S::f32s {
    let [_, slope] = value_and_slope(simd, x);
    simd.mul_f32s(dy, slope)
}

vectorized! {
    fn forward<S: Simd>(simd: S, y: &mut [f32], x: &[f32]) {
        update!(simd, [y, x], gelu(simd, x));
    }

    fn forward_in_place<S: Simd>(simd: S, x: &mut [f32]) {
        update!(simd, [x], gelu(simd, x));
    }

    fn backward<S: Simd>(simd: S, dx: &mut [f32], dy: &[f32], x: &[f32]) {
        update!(simd, [dx, dy, x], gradient(simd, dy, x));
    }

    /// Replaces dy by dx.
    fn backward_in_dy<S: Simd>(simd: S, dy: &mut [f32], x: &[f32]) {
        update!(simd, [dy, x], gradient(simd, dy, x));
    }

    /// Replaces x by dx.
    fn backward_in_x<S: Simd>(simd: S, x: &mut [f32], dy: &[f32]) {
        update!(simd, [x, dy], gradient(simd, dy, x));
    }
}
