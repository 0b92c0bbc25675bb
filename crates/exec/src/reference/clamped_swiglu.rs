//! Reference of `ops/clamped_swiglu.rs`.

use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::{ClampedSwiglu, ClampedSwigluGrad};

/// y, and its slopes in the gate and in the channel that the gate multiplies.
fn value_and_slopes(op: &ClampedSwiglu, gate: f64, up: f64) -> [f64; 3] {
    let (alpha, limit) = (f64::from(op.alpha), f64::from(op.limit));
    let (g, u) = (gate.min(limit), up.clamp(-limit, limit));
    let s = 1.0 / (1.0 + (-alpha * g).exp());
    let of_gate = if gate > limit { 0.0 } else { (u + 1.0) * s * (1.0 + alpha * g * (1.0 - s)) };
    let of_up = if up.abs() > limit { 0.0 } else { g * s };
    [(u + 1.0) * g * s, of_gate, of_up]
}

impl Reference for ClampedSwiglu {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        for (y, pair) in outputs[0].iter_mut().zip(call.f(0).as_chunks::<2>().0) {
            let [gate, up] = pair.map(F::to_f64);
            *y = F::from_f64(value_and_slopes(self, gate, up)[0]);
        }
    }
}

impl Reference for ClampedSwigluGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let pairs = outputs[0].as_chunks_mut::<2>().0.iter_mut().zip(call.f(1).as_chunks::<2>().0);
        for (&dy, (dx, pair)) in call.f(0).iter().zip(pairs) {
            let [gate, up] = pair.map(F::to_f64);
            let [_, of_gate, of_up] = value_and_slopes(&self.forward, gate, up);
            *dx = [of_gate, of_up].map(|slope| dy * F::from_f64(slope));
        }
    }
}
