//! A soft cap on the size of logits, and its gradient.

use super::CpuKernel;
use super::half::Float;
use super::math::{exp, update};
use super::tiles::{for_each_chunk, in_precision, operand_unless_in_output, results};
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::ops;
use pulp::Simd;

impl CpuKernel for ops::SoftCap {
    fn run(&self, call: Call) {
        in_precision!(call, run(self.cap, call));
    }
}

impl CpuKernel for ops::SoftCapGrad {
    fn run(&self, call: Call) {
        in_precision!(call, run_grad(self.cap, call));
    }
}

fn run<E: Float>(cap: f32, mut call: Call) {
    let x = operand_unless_in_output::<E>(&call, 0);
    let [y] = results(&mut call);
    for_each_chunk(4 * y.len(), y, [x], |y, [x]| match x {
        Some(x) => forward(y, x, cap),
        None => forward_in_place(y, cap),
    });
}

fn run_grad<E: Float>(cap: f32, mut call: Call) {
    let operands = [0, 1].map(|index| operand_unless_in_output::<E>(&call, index));
    let [dx] = results(&mut call);
    for_each_chunk(3 * dx.len(), dx, operands, |dx, operands| match operands {
        [Some(dy), Some(y)] => backward(dx, dy, y, cap),
        [None, Some(y)] => backward_in_dy(dx, y, cap),
        [Some(dy), None] => backward_in_y(dx, dy, cap),
        [None, None] => panic!("only one operand of a gradient can share the memory of its output"),
    });
}

/// tanh x. Near zero, where 1 - 2/(e²ˣ + 1) would cancel, by the Padé approximant x·(945 + 105x² + x⁴)/(945 + 420x² + 15x⁴),
/// which is exact there to single precision.
#[inline(always)]
fn tanh<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    /// The size of x up to which the approximant is used: its relative error, about x¹⁰/10⁷, is below 2⁻²⁴ there.
    const NEAR: f32 = 0.8;
    let [one, two] = [1.0, 2.0].map(|constant| simd.splat_f32s(constant));
    let square = simd.mul_f32s(x, x);
    let upper = simd.mul_add_e_f32s(simd.add_f32s(square, simd.splat_f32s(105.0)), square, simd.splat_f32s(945.0));
    let lower = simd.mul_add_e_f32s(square, simd.splat_f32s(15.0), simd.splat_f32s(420.0));
    let lower = simd.mul_add_e_f32s(lower, square, simd.splat_f32s(945.0));
    let near = simd.div_f32s(simd.mul_f32s(x, upper), lower);
    let size = simd.abs_f32s(x);
    let far = simd.sub_f32s(one, simd.div_f32s(two, simd.add_f32s(exp(simd, simd.mul_f32s(size, two)), one)));
    let far = simd.select_f32s(simd.less_than_f32s(x, simd.splat_f32s(0.0)), simd.neg_f32s(far), far);
    simd.select_f32s(simd.less_than_f32s(size, simd.splat_f32s(NEAR)), near, far)
}

#[inline(always)]
fn capped<S: Simd>(simd: S, x: S::f32s, cap: f32) -> S::f32s {
    let cap = simd.splat_f32s(cap);
    simd.mul_f32s(cap, tanh(simd, simd.div_f32s(x, cap)))
}

/// The slope of the cap at y, a capped number; zero beyond the cap, where hidden scores are.
#[inline(always)]
pub(super) fn slope<S: Simd>(simd: S, y: S::f32s, cap: f32) -> S::f32s {
    let part = simd.div_f32s(y, simd.splat_f32s(cap));
    let one = simd.splat_f32s(1.0);
    simd.sub_f32s(one, simd.min_f32s(simd.mul_f32s(part, part), one))
}

/// dy times the slope.
#[inline(always)]
fn gradient<S: Simd>(simd: S, dy: S::f32s, y: S::f32s, cap: f32) -> S::f32s {
    simd.mul_f32s(dy, slope(simd, y, cap))
}

/// Replaces numbers by capped ones.
#[inline(always)]
pub(super) fn cap_in_place<S: Simd>(simd: S, x: &mut [f32], cap: f32) {
    update!(simd, [x], capped(simd, x, cap));
}

vectorized! {
    fn forward<S: Simd>(simd: S, y: &mut [f32], x: &[f32], cap: f32) {
        update!(simd, [y, x], capped(simd, x, cap));
    }

    pub(super) fn forward_in_place<S: Simd>(simd: S, x: &mut [f32], cap: f32) {
        cap_in_place(simd, x, cap);
    }

    fn backward<S: Simd>(simd: S, dx: &mut [f32], dy: &[f32], y: &[f32], cap: f32) {
        update!(simd, [dx, dy, y], gradient(simd, dy, y, cap));
    }

    /// Replaces dy by dx.
    fn backward_in_dy<S: Simd>(simd: S, dy: &mut [f32], y: &[f32], cap: f32) {
        update!(simd, [dy, y], gradient(simd, dy, y, cap));
    }

    /// Replaces y by dx.
    fn backward_in_y<S: Simd>(simd: S, y: &mut [f32], dy: &[f32], cap: f32) {
        update!(simd, [y, dy], gradient(simd, dy, y, cap));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caps_are_accurate_near_zero_reach_their_limit_and_keep_nan() {
        let cap = 30.0;
        let x = (1..200_000).map(|i| i as f32 * 1e-3).flat_map(|x| [x, -x]).collect::<Vec<_>>();
        let mut y = x.clone();
        forward_in_place(&mut y, cap);
        for (&x, &y) in x.iter().zip(&y) {
            let exact = f64::from(cap) * (f64::from(x) / f64::from(cap)).tanh();
            assert!((f64::from(y) / exact - 1.0).abs() < 4e-7, "cap of {x}: {y}, not {exact}");
        }
        let mut ends = [f32::INFINITY, f32::NEG_INFINITY, 1e30, -0.0, f32::NAN];
        forward_in_place(&mut ends, cap);
        assert_eq!(ends[..4], [cap, -cap, cap, 0.0]);
        assert!(ends[4].is_nan());
    }
}
