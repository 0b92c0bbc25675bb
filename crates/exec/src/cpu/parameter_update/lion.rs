//! Lion, in the order of operations of its authors' implementation.

use super::Step;
use crate::cpu::math::mul_add;
use crate::cpu::vectorize::vectorized;
use plimsoll_graph::optimizers::Lion;

/// Values that all elements share.
pub(super) struct Formula {
    factor: f32,
    beta1: f32,
    beta2: f32,
    /// Factor of a weight that applies its decay.
    decay: f32,
    /// Size of a weight's step: the learning rate.
    size: f32,
}

impl Formula {
    pub(super) fn new(rule: &Lion, step: &Step) -> Self {
        let Step { factor, rate, decay, .. } = *step;
        Self { factor, beta1: rule.beta1, beta2: rule.beta2, decay, size: rate as f32 }
    }
}

impl super::Formula<1> for Formula {
    fn update(&self, weight: &mut [f32], [m]: [&mut [f32]; 1], gradient: &[f32]) {
        update(self, weight, m, gradient);
    }
}

vectorized! {
    fn update<S: Simd>(simd: S, formula: &Formula, weight: &mut [f32], m: &mut [f32], gradient: &[f32]) {
        let Formula { factor, beta1, beta2, decay, size } = *formula;
        for ((weight, m), &gradient) in weight.iter_mut().zip(m).zip(gradient) {
            let g = gradient * factor;
            let direction = mul_add::<S>(beta1, *m, (1.0 - beta1) * g);
            // The sign of zero is zero.
            let step = if direction == 0.0 { 0.0 } else { size.copysign(direction) };
            *weight = mul_add::<S>(*weight, decay, -step);
            *m = mul_add::<S>(1.0 - beta2, g - *m, *m);
        }
    }
}
