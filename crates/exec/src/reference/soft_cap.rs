//! Reference of `ops/soft_cap.rs`.

use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::{SoftCap, SoftCapGrad};

/// A number within the cap, if there is one.
pub(super) fn capped(cap: Option<f32>, x: f64) -> f64 {
    cap.map(f64::from).map_or(x, |cap| cap * (x / cap).tanh())
}

/// The slope of the cap at a capped number.
pub(super) fn slope(cap: Option<f32>, y: f64) -> f64 {
    cap.map(f64::from).map_or(1.0, |cap| 1.0 - (y / cap).powi(2))
}

impl Reference for SoftCap {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        for (y, x) in outputs[0].iter_mut().zip(call.f(0)) {
            *y = x.map(|x| capped(Some(self.cap), x));
        }
    }
}

impl Reference for SoftCapGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        for (dx, (&dy, y)) in outputs[0].iter_mut().zip(call.f(0).iter().zip(call.f(1))) {
            *dx = dy * y.map(|y| slope(Some(self.cap), y));
        }
    }
}
