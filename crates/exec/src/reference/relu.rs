//! Reference of `ops/relu.rs`.

use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::{Relu, ReluGrad};

impl Reference for Relu {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        for (y, &x) in outputs[0].iter_mut().zip(call.f(0)) {
            *y = if x <= F::ZERO { F::ZERO } else { x };
        }
    }
}

impl Reference for ReluGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        for (dx, (&dy, &y)) in outputs[0].iter_mut().zip(call.f(0).iter().zip(call.f(1))) {
            *dx = if y <= F::ZERO { F::ZERO } else { dy };
        }
    }
}
