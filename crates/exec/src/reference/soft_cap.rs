//! Reference of `ops/soft_cap.rs`.

use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::{SoftCap, SoftCapGrad};

impl Reference for SoftCap {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let cap = f64::from(self.cap);
        for (y, x) in outputs[0].iter_mut().zip(call.f(0)) {
            *y = x.map(|x| cap * (x / cap).tanh());
        }
    }
}

impl Reference for SoftCapGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let cap = f64::from(self.cap);
        for (dx, (&dy, y)) in outputs[0].iter_mut().zip(call.f(0).iter().zip(call.f(1))) {
            *dx = dy * y.map(|y| 1.0 - (y / cap).powi(2));
        }
    }
}
