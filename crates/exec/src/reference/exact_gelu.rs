//! Reference of `ops/exact_gelu.rs`.

use super::gated::activate;
use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::{Activation, ExactGelu, ExactGeluGrad};

impl Reference for ExactGelu {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        for (y, x) in outputs[0].iter_mut().zip(call.f(0)) {
            *y = x.map(|x| activate(Activation::Gelu, x)[0]);
        }
    }
}

impl Reference for ExactGeluGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        for (dx, (&dy, x)) in outputs[0].iter_mut().zip(call.f(0).iter().zip(call.f(1))) {
            *dx = dy * x.map(|x| activate(Activation::Gelu, x)[1]);
        }
    }
}
