//! Reference of `ops/moving_average.rs`.

use super::{Real, RefCall};
use plimsoll_graph::ops::MovingAverage;

pub(super) fn moving_average<F: Real>(op: &MovingAverage, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
    if call.f(1)[0].to_f64().is_nan() {
        return;
    }
    let decay = f64::from(op.decay);
    for (average, weight) in outputs[0].iter_mut().zip(call.f(0)) {
        *average = F::from_f64(decay * average.to_f64() + (1.0 - decay) * weight.to_f64());
    }
}
