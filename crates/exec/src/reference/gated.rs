//! Reference of `ops/gated.rs`.

use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::{Activation, Gated, GatedGrad};
use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// (2/√π) ∫₀ˣ e^(-t²) dt by a series without cancellation.
/// Source: Abramowitz & Stegun 1964, 7.1.6.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > 1e-18 * sum.abs() {
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    2.0 / PI.sqrt() * (-x * x).exp() * sum
}

/// The activation of x and its slope there.
pub(super) fn activate(activation: Activation, x: f64) -> [f64; 2] {
    match activation {
        Activation::Silu => {
            let s = 1.0 / (1.0 + (-x).exp());
            [x * s, s + x * s * (1.0 - s)]
        }
        Activation::GeluTanh => {
            let (factor, cubic) = ((2.0 / PI).sqrt(), 0.044_715);
            let tanh = (factor * (x + cubic * x * x * x)).tanh();
            let inner = factor * (1.0 + 3.0 * cubic * x * x);
            [0.5 * x * (1.0 + tanh), 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner]
        }
        Activation::Gelu => {
            let below = 0.5 * (1.0 + erf(x * FRAC_1_SQRT_2));
            [x * below, below + x * (-0.5 * x * x).exp() / (2.0 * PI).sqrt()]
        }
        Activation::Relu if x > 0.0 => [x, 1.0],
        Activation::Relu => [0.0, 0.0],
    }
}

impl Reference for Gated {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        for (y, (gate, &up)) in outputs[0].iter_mut().zip(call.f(0).iter().zip(call.f(1))) {
            *y = gate.map(|x| activate(self.activation, x)[0]) * up;
        }
    }
}

impl Reference for GatedGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (dy, gate, up) = (call.f(0), call.f(1), call.f(2));
        for i in 0..dy.len() {
            let [value, slope] = activate(self.activation, gate[i].to_f64()).map(F::from_f64);
            outputs[0][i] = dy[i] * up[i] * slope;
            outputs[1][i] = dy[i] * value;
        }
    }
}
