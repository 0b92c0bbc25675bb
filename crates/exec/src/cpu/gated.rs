//! Gated activations and their gradients. If an operand does not share the memory of the output, a chunk of it is
//! copied there first, which is cheap in the first-level cache, so that one loop handles all cases.

use super::CpuKernel;
use super::gelu;
use super::half::Float;
use super::math::{exp, split, split_mut, update};
use super::parallel::{self, CHUNK};
use super::tiles::{for_each_chunk, in_precision, in_stack_tiles, operand, operand_unless_in_output, results};
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::ops::{self, Activation};
use pulp::Simd;
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};

impl CpuKernel for ops::Gated {
    fn run(&self, call: Call) {
        in_precision!(call, run(self, call));
    }
}

fn run<E: Float>(op: &ops::Gated, mut call: Call) {
    let operands = [0, 1].map(|index| operand_unless_in_output::<E>(&call, index));
    let [y] = results(&mut call);
    for_each_chunk(5 * y.len(), y, operands, |y, operands| match operands {
        [Some(gate), Some(up)] => {
            y.copy_from_slice(gate);
            forward_in_gate(y, up, op.activation);
        }
        [None, Some(up)] => forward_in_gate(y, up, op.activation),
        [Some(gate), None] => forward_in_up(y, gate, op.activation),
        [None, None] => panic!("only one operand of a gate can share the memory of its output"),
    });
}

impl CpuKernel for ops::GatedGrad {
    fn run(&self, call: Call) {
        in_precision!(call, run_grad(self, call));
    }
}

fn run_grad<E: Float>(op: &ops::GatedGrad, mut call: Call) {
    let dy = operand::<E>(&call, 0);
    let operands = [1, 2].map(|index| operand_unless_in_output::<E>(&call, index));
    let [dgate, dup] = results(&mut call);
    let parts = dgate.par_chunks_mut(CHUNK).zip(dup.par_chunks_mut(CHUNK)).zip(dy.par_chunks(CHUNK)).enumerate();
    parallel::for_each(6 * dy.len(), parts, |(part, ((dgate, dup), dy))| {
        let [gate, up] = operands.map(|operand| operand.map(|operand| &operand[part * CHUNK..][..dy.len()]));
        in_stack_tiles([dgate, dup], [gate, up, Some(dy)], |[dgate, dup], [gate, up, dy]| {
            for (operand, into) in [(gate, &mut *dgate), (up, &mut *dup)] {
                if let Some(operand) = operand {
                    into.copy_from_slice(operand);
                }
            }
            backward(dgate, dup, dy.expect("dy shares no memory with an output"), op.activation);
        });
    });
}

/// An activation as used by the loops over elements.
#[inline(always)]
fn activate<S: Simd>(simd: S, activation: Activation, x: S::f32s) -> [S::f32s; 2] {
    match activation {
        Activation::Silu => silu(simd, x),
        Activation::GeluTanh => gelu::value_and_slope(simd, x),
        Activation::Gelu => exact_gelu(simd, x),
        Activation::Relu => {
            let (zero, off) = (simd.splat_f32s(0.0), simd.less_than_or_equal_f32s(x, simd.splat_f32s(0.0)));
            [simd.select_f32s(off, zero, x), simd.select_f32s(off, zero, simd.splat_f32s(1.0))]
        }
    }
}

/// x·s and s + x·s·(1 - s), with s = 1/(1 + e⁻ˣ).
#[inline(always)]
fn silu<S: Simd>(simd: S, x: S::f32s) -> [S::f32s; 2] {
    let one = simd.splat_f32s(1.0);
    let s = simd.div_f32s(one, simd.add_f32s(one, exp(simd, simd.neg_f32s(x))));
    let value = simd.mul_f32s(x, s);
    [value, simd.mul_add_e_f32s(value, simd.sub_f32s(one, s), s)]
}

/// x·Φ(x) and Φ(x) + x·φ(x), with Φ the normal distribution and φ its density.
#[inline(always)]
pub(super) fn exact_gelu<S: Simd>(simd: S, x: S::f32s) -> [S::f32s; 2] {
    /// 1/√(2π).
    const DENSITY: f32 = 0.398_942_3;
    let [below, decay] = normal(simd, x);
    let density = simd.mul_f32s(decay, simd.splat_f32s(DENSITY));
    [simd.mul_f32s(x, below), simd.mul_add_e_f32s(x, density, below)]
}

/// Φ(x), such that 2Φ(x) - 1 = erf(x/√2) is off by less than 2·10⁻⁷, and e^(-x²/2). Where |x| < 1.5, Φ(x) = 1/2 +
/// x·Q(x²). Beyond, Φ(-|x|) = e^(-x²/2) · t · P(t), t = 1/(1 + 0.35|x|), in the manner of Hastings 1955, which keeps
/// its relative accuracy for small values. Both polynomials are minimax fits with errors of 10⁻⁹ absolute and 3·10⁻⁸
/// relative.
#[inline(always)]
fn normal<S: Simd>(simd: S, x: S::f32s) -> [S::f32s; 2] {
    const MIDDLE: [f32; 7] = [
        3.995_796_8e-07,
        -8.629_789e-06,
        0.000_114_104_21,
        -0.001_186_142_6,
        0.009_973_01,
        -0.066_490_27,
        0.398_942_26,
    ];
    const TAIL: [f32; 9] = [
        -0.029_146_135,
        0.143_972_68,
        -0.255_716_26,
        0.159_176_44,
        -0.023_111_377,
        0.105_508_65,
        0.119_832_71,
        0.139_861_9,
        0.139_621_4,
    ];
    let (one, half, distance) = (simd.splat_f32s(1.0), simd.splat_f32s(0.5), simd.abs_f32s(x));
    let square = simd.mul_f32s(x, x);
    let middle = simd.mul_add_e_f32s(x, polynomial(simd, &MIDDLE, square), half);
    let decay = exp(simd, simd.mul_f32s(square, simd.splat_f32s(-0.5)));
    let t = simd.div_f32s(one, simd.mul_add_e_f32s(distance, simd.splat_f32s(0.35), one));
    let tail = simd.mul_f32s(decay, simd.mul_f32s(t, polynomial(simd, &TAIL, t)));
    let negative = simd.less_than_f32s(x, simd.splat_f32s(0.0));
    let outside = simd.select_f32s(negative, tail, simd.sub_f32s(one, tail));
    let is_middle = simd.less_than_f32s(distance, simd.splat_f32s(1.5));
    [simd.select_f32s(is_middle, middle, outside), decay]
}

/// The polynomial with these coefficients, of the highest power first.
#[inline(always)]
fn polynomial<S: Simd>(simd: S, coefficients: &[f32], x: S::f32s) -> S::f32s {
    let mut sum = simd.splat_f32s(0.0);
    for coefficient in coefficients {
        sum = simd.mul_add_e_f32s(sum, x, simd.splat_f32s(*coefficient));
    }
    sum
}

/// dgate and dup.
#[inline(always)]
fn gradients<S: Simd>(simd: S, activation: Activation, [gate, up, dy]: [S::f32s; 3]) -> [S::f32s; 2] {
    let [value, slope] = activate(simd, activation, gate);
    [simd.mul_f32s(simd.mul_f32s(dy, up), slope), simd.mul_f32s(dy, value)]
}

vectorized! {
    /// Replaces the gate by y.
    fn forward_in_gate<S: Simd>(simd: S, y: &mut [f32], up: &[f32], activation: Activation) {
        update!(simd, [y, up], simd.mul_f32s(activate(simd, activation, y)[0], up));
    }

    /// Replaces `up` by y.
    fn forward_in_up<S: Simd>(simd: S, y: &mut [f32], gate: &[f32], activation: Activation) {
        update!(simd, [y, gate], simd.mul_f32s(activate(simd, activation, gate)[0], y));
    }

    /// Replaces gate and up by dgate and dup.
    fn backward<S: Simd>(simd: S, gate: &mut [f32], up: &mut [f32], dy: &[f32], activation: Activation) {
        let ((gate, gate_rest), (up, up_rest)) = (split_mut(simd, gate), split_mut(simd, up));
        let (dy, dy_rest) = split(simd, dy);
        for ((gate, up), &dy) in gate.iter_mut().zip(up).zip(dy) {
            [*gate, *up] = gradients(simd, activation, [*gate, *up, dy]);
        }
        if !dy_rest.is_empty() {
            let last = [&*gate_rest, &*up_rest, dy_rest].map(|rest| simd.partial_load_f32s(rest));
            let [dgate, dup] = gradients(simd, activation, last);
            simd.partial_store_f32s(gate_rest, dgate);
            simd.partial_store_f32s(up_rest, dup);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// erf(x) of some x, by mpmath.
    const ERF: [(f32, f64); 16] = [
        (0.01, 0.011_283_415_555_85),
        (0.1, 0.112_462_916_018_285),
        (0.2, 0.222_702_589_210_478),
        (0.35, 0.379_382_053_562_31),
        (0.5, 0.520_499_877_813_047),
        (0.7, 0.677_801_193_837_418),
        (0.8, 0.742_100_964_707_661),
        (0.9, 0.796_908_212_422_832),
        (1.0, 0.842_700_792_949_715),
        (1.05, 0.862_436_106_090_097),
        (1.07, 0.869_773_297_163_587),
        (1.2, 0.910_313_978_229_635),
        (1.5, 0.966_105_146_475_311),
        (1.7, 0.983_790_458_590_775),
        (2.2, 0.998_137_153_702_018),
        (3.0, 0.999_977_909_503_001),
    ];

    vectorized! {
        fn normal_of<S: Simd>(simd: S, x: &mut [f32]) {
            update!(simd, [x], normal(simd, x)[0]);
        }
    }

    #[test]
    fn the_error_function_is_right_to_single_precision() {
        for (at, erf) in ERF {
            for sign in [1.0, -1.0] {
                let mut x = [sign * at * std::f32::consts::SQRT_2];
                // The rounding of the argument times the slope.
                let moved = f64::from(x[0]) / std::f64::consts::SQRT_2 - f64::from((sign * at * 100.0).round()) / 100.0;
                let slope = std::f64::consts::FRAC_2_SQRT_PI * (-f64::from(at * at)).exp();
                let exact = f64::from(sign) * erf + slope * moved;
                normal_of(&mut x);
                let found = 2.0 * f64::from(x[0]) - 1.0;
                assert!((found - exact).abs() < 2e-7, "erf({}) = {exact}, not {found}", sign * at);
            }
        }
    }

    #[test]
    fn activations_have_their_limits() {
        for activation in [Activation::Silu, Activation::GeluTanh, Activation::Gelu, Activation::Relu] {
            let (mut gate, mut up) = ([-1e4, -200.0, 0.0, 200.0, 1e4, f32::NAN], [1.0; 6]);
            backward(&mut gate, &mut up, &[1.0; 6], activation);
            assert_eq!([up[0], up[1], up[2], up[3], up[4]], [0.0, 0.0, 0.0, 200.0, 1e4], "{activation:?}");
            assert_eq!([gate[0], gate[1], gate[3], gate[4]], [0.0, 0.0, 1.0, 1.0], "{activation:?}");
            assert!(up[5].is_nan(), "{activation:?} does not propagate NaN");
        }
    }
}
