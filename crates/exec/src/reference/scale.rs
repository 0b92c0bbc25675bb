//! Reference of `ops/scale.rs`.

use super::{Real, RefCall};
use plimsoll_graph::ops::Scale;

pub(super) fn scale<F: Real>(op: &Scale, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
    let factor = F::from_f64(f64::from(op.factor));
    for (y, &x) in outputs[0].iter_mut().zip(call.f(0)) {
        *y = x * factor;
    }
}
