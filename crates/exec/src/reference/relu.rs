//! Reference of `ops/relu.rs`.

use super::{Real, RefCall};

pub(super) fn relu<F: Real>(call: &RefCall<F>, outputs: &mut [Vec<F>]) {
    for (y, &x) in outputs[0].iter_mut().zip(call.f(0)) {
        *y = if x <= F::ZERO { F::ZERO } else { x };
    }
}

pub(super) fn relu_grad<F: Real>(call: &RefCall<F>, outputs: &mut [Vec<F>]) {
    for (dx, (&dy, &y)) in outputs[0].iter_mut().zip(call.f(0).iter().zip(call.f(1))) {
        *dx = if y <= F::ZERO { F::ZERO } else { dy };
    }
}
