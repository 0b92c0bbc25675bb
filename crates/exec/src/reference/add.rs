//! Reference of `ops/add.rs`.

use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::Add;

impl Reference for Add {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        for (y, (&a, &b)) in outputs[0].iter_mut().zip(call.f(0).iter().zip(call.f(1))) {
            *y = a + b;
        }
    }
}
