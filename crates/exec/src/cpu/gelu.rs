//! GELU in its tanh form. x/2·(1 + tanh u) is computed as x/(1 + e⁻²ᵘ), which is the same number and loses nothing to
//! cancellation where tanh u is close to -1.

use super::math::{exp, mul_add};
use super::parallel::{self, CHUNK};
use super::vectorize::vectorized;
use crate::call::Call;
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};

/// 2·√(2/π): twice the factor of x in u.
const LINEAR: f32 = 1.595_769_1;
/// What x³ weighs against x in u.
const CUBIC: f32 = 0.044_715;

pub(super) fn run(mut call: Call) {
    let x = call.f32_unless_in_output(0);
    let [y] = call.take_outputs();
    match x {
        Some(x) => {
            let parts = y.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK));
            parallel::for_each(4 * x.len(), parts, |(y, x)| forward(y, x));
        }
        None => parallel::for_each(4 * y.len(), y.par_chunks_mut(CHUNK), forward_in_place),
    }
}

pub(super) fn run_grad(mut call: Call) {
    let operands = [0, 1].map(|index| call.f32_unless_in_output(index));
    let [dx] = call.take_outputs();
    let elements = 4 * dx.len();
    let parts = dx.par_chunks_mut(CHUNK);
    match operands {
        [Some(dy), Some(x)] => {
            let parts = parts.zip(dy.par_chunks(CHUNK)).zip(x.par_chunks(CHUNK));
            parallel::for_each(elements, parts, |((dx, dy), x)| backward(dx, dy, x));
        }
        [None, Some(x)] => {
            parallel::for_each(elements, parts.zip(x.par_chunks(CHUNK)), |(dx, x)| backward_from_dy(dx, x));
        }
        [Some(dy), None] => {
            parallel::for_each(elements, parts.zip(dy.par_chunks(CHUNK)), |(dx, dy)| backward_from_x(dx, dy));
        }
        [None, None] => panic!("only one operand of a gradient can lie in its output"),
    }
}

/// e⁻²ᵘ.
#[inline(always)]
fn decay<const FMA: bool>(x: f32) -> f32 {
    exp::<FMA>(x * mul_add::<FMA>(x * x, -LINEAR * CUBIC, -LINEAR))
}

#[inline(always)]
fn gelu<const FMA: bool>(x: f32) -> f32 {
    x / (1.0 + decay::<FMA>(x))
}

/// With s = 1/(1 + e⁻²ᵘ): s + x·s·(1 - s)·2u'.
#[inline(always)]
fn slope<const FMA: bool>(x: f32) -> f32 {
    let s = 1.0 / (1.0 + decay::<FMA>(x));
    let inner = mul_add::<FMA>(x * x, 3.0 * LINEAR * CUBIC, LINEAR);
    mul_add::<FMA>(x * inner, s - s * s, s)
}

vectorized! {
    fn forward<const FMA: bool>(y: &mut [f32], x: &[f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = gelu::<FMA>(x);
        }
    }

    fn forward_in_place<const FMA: bool>(y: &mut [f32]) {
        for y in y {
            *y = gelu::<FMA>(*y);
        }
    }

    fn backward<const FMA: bool>(dx: &mut [f32], dy: &[f32], x: &[f32]) {
        for ((dx, &dy), &x) in dx.iter_mut().zip(dy).zip(x) {
            *dx = dy * slope::<FMA>(x);
        }
    }

    /// dx holds dy.
    fn backward_from_dy<const FMA: bool>(dx: &mut [f32], x: &[f32]) {
        for (dx, &x) in dx.iter_mut().zip(x) {
            *dx *= slope::<FMA>(x);
        }
    }

    /// dx holds x.
    fn backward_from_x<const FMA: bool>(dx: &mut [f32], dy: &[f32]) {
        for (dx, &dy) in dx.iter_mut().zip(dy) {
            *dx = dy * slope::<FMA>(*dx);
        }
    }
}
