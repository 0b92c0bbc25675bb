//! Reference of `ops/adamw.rs`.

use super::{Real, RefCall};
use graph::ops::AdamW;

pub(super) fn adamw<F: Real>(op: &AdamW, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
    let (gradient, factor) = (call.f(0), call.f(1)[0].to_f64());
    if factor.is_nan() {
        return;
    }
    let [beta1, beta2] = [op.beta1, op.beta2].map(f64::from);
    let [eps, decay, rate] = [op.eps, op.weight_decay, call.scalars.learning_rate].map(f64::from);
    let correction1 = 1.0 - beta1.powf(call.scalars.step as f64);
    let correction2 = 1.0 - beta2.powf(call.scalars.step as f64);
    for (i, g) in gradient.iter().enumerate() {
        let g = factor * g.to_f64();
        let m = beta1 * outputs[1][i].to_f64() + (1.0 - beta1) * g;
        let v = beta2 * outputs[2][i].to_f64() + (1.0 - beta2) * g * g;
        let decayed = outputs[0][i].to_f64() * (1.0 - rate * decay);
        let updated = decayed - rate * (m / correction1) / ((v / correction2).sqrt() + eps);
        (outputs[0][i], outputs[1][i], outputs[2][i]) = (F::from_f64(updated), F::from_f64(m), F::from_f64(v));
    }
}
