//! Reference of `ops/scale.rs`.

use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::Scale;

impl Reference for Scale {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let factor = F::from_f64(f64::from(self.factor));
        for (y, &x) in outputs[0].iter_mut().zip(call.f(0)) {
            *y = x * factor;
        }
    }
}
