//! Reference of `ops/gelu.rs`.

use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::{Gelu, GeluGrad};

const SQRT_2_OVER_PI: f64 = 0.797_884_560_802_865_4;
const CUBIC: f64 = 0.044_715;

impl Reference for Gelu {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        for (y, x) in outputs[0].iter_mut().zip(call.f(0)) {
            *y = x.map(|x| 0.5 * x * (1.0 + (SQRT_2_OVER_PI * (x + CUBIC * x * x * x)).tanh()));
        }
    }
}

impl Reference for GeluGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        for (dx, (&dy, x)) in outputs[0].iter_mut().zip(call.f(0).iter().zip(call.f(1))) {
            let slope = x.map(|x| {
                let tanh = (SQRT_2_OVER_PI * (x + CUBIC * x * x * x)).tanh();
                let inner = SQRT_2_OVER_PI * (1.0 + 3.0 * CUBIC * x * x);
                0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner
            });
            *dx = dy * slope;
        }
    }
}
