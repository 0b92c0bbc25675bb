//! AdamW, in the order of operations of PyTorch's `torch.optim.AdamW`, single-tensor form.

use super::Step;
use crate::cpu::math::mul_add;
use crate::cpu::vectorize::vectorized;
use plimsoll_graph::optimizers::AdamW;

/// Values that all elements share.
pub(super) struct Formula {
    factor: f32,
    beta1: f32,
    beta2: f32,
    eps: f32,
    /// Factor of a weight that applies its decay.
    decay: f32,
    /// The learning rate over 1 - β₁ᵗ.
    size: f32,
    /// 1 / √(1 - β₂ᵗ).
    root_correction: f32,
}

impl Formula {
    pub(super) fn new(rule: &AdamW, step: &Step) -> Self {
        let corrections = [rule.beta1, rule.beta2].map(|beta| 1.0 - f64::from(beta).powf(step.number as f64));
        Self {
            factor: step.factor,
            beta1: rule.beta1,
            beta2: rule.beta2,
            eps: rule.eps,
            decay: step.decay,
            size: (step.rate / corrections[0]) as f32,
            root_correction: (1.0 / corrections[1].sqrt()) as f32,
        }
    }
}

impl super::Formula<2> for Formula {
    fn update(&self, weight: &mut [f32], [m, v]: [&mut [f32]; 2], gradient: &[f32]) {
        update(self, weight, m, v, gradient);
    }
}

vectorized! {
    fn update<S: Simd>(
        simd: S,
        formula: &Formula,
        weight: &mut [f32],
        m: &mut [f32],
        v: &mut [f32],
        gradient: &[f32],
    ) {
        let Formula { factor, beta1, beta2, eps, decay, size, root_correction } = *formula;
        for (((weight, m), v), &gradient) in weight.iter_mut().zip(m).zip(v).zip(gradient) {
            let g = gradient * factor;
            *m = mul_add::<S>(1.0 - beta1, g - *m, *m);
            *v = mul_add::<S>(1.0 - beta2, g * g, beta2 * *v);
            let denominator = mul_add::<S>(v.sqrt(), root_correction, eps);
            *weight = mul_add::<S>(*weight, decay, -size * (*m / denominator));
        }
    }
}
