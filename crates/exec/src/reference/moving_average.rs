//! Reference of `ops/moving_average.rs`.

use super::remainder::whole;
use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::MovingAverage;

impl Reference for MovingAverage {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        if call.f(1)[0].to_f64().is_nan() {
            return;
        }
        let decay = f64::from(self.decay);
        let weight = |i: usize| match call.inputs.get(2) {
            Some(remainder) => whole(call.f(0)[i].to_f64(), remainder.floats()[i].to_f64()),
            None => call.f(0)[i].to_f64(),
        };
        for (i, average) in outputs[0].iter_mut().enumerate() {
            *average = F::from_f64(decay * average.to_f64() + (1.0 - decay) * weight(i));
        }
    }
}
