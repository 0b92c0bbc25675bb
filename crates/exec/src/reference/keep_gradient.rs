//! Reference of `ops/keep_gradient.rs`. There is no stochastic rounding, since its random bits are not part of the definition.

use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::KeepGradient;

impl Reference for KeepGradient {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        for (kept, gradient) in outputs[0].iter_mut().zip(call.f(0)) {
            let before = if self.accumulate { kept.to_f64() } else { 0.0 };
            *kept = F::from_f64(before + gradient.to_f64());
        }
    }
}
