//! AdamW, in the order of operations of PyTorch's `torch.optim.AdamW`, single-tensor form.

use super::math::mul_add;
use super::parallel::{self, CHUNK};
use super::vectorize::vectorized;
use crate::call::Call;
use graph::ops;
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};

pub(super) fn run(op: &ops::AdamW, mut call: Call) {
    let (gradient, factor) = (call.f32(0), call.f32(1)[0]);
    if factor.is_nan() {
        return;
    }
    let [weight, m, v] = call.take_outputs();
    let rate = f64::from(call.scalars.learning_rate);
    let corrections = [op.beta1, op.beta2].map(|beta| 1.0 - f64::from(beta).powf(call.scalars.step as f64));
    let step = Step {
        factor,
        beta1: op.beta1,
        beta2: op.beta2,
        eps: op.eps,
        decay: (1.0 - rate * f64::from(op.weight_decay)) as f32,
        size: (rate / corrections[0]) as f32,
        root_correction: (1.0 / corrections[1].sqrt()) as f32,
    };
    let parts = weight
        .par_chunks_mut(CHUNK)
        .zip(m.par_chunks_mut(CHUNK))
        .zip(v.par_chunks_mut(CHUNK))
        .zip(gradient.par_chunks(CHUNK));
    parallel::for_each(4 * gradient.len(), parts, |(((weight, m), v), gradient)| update(&step, weight, m, v, gradient));
}

/// What all elements share.
struct Step {
    factor: f32,
    beta1: f32,
    beta2: f32,
    eps: f32,
    /// What is left of a weight after its decay.
    decay: f32,
    /// The learning rate over 1 - β₁ᵗ.
    size: f32,
    /// 1 / √(1 - β₂ᵗ).
    root_correction: f32,
}

vectorized! {
    fn update<S: Simd>(simd: S, step: &Step, weight: &mut [f32], m: &mut [f32], v: &mut [f32], gradient: &[f32]) {
        let Step { factor, beta1, beta2, eps, decay, size, root_correction } = *step;
        for (((weight, m), v), &gradient) in weight.iter_mut().zip(m).zip(v).zip(gradient) {
            let g = gradient * factor;
            *m = mul_add::<S>(1.0 - beta1, g - *m, *m);
            *v = mul_add::<S>(1.0 - beta2, g * g, beta2 * *v);
            let denominator = mul_add::<S>(v.sqrt(), root_correction, eps);
            *weight = mul_add::<S>(*weight, decay, -size * (*m / denominator));
        }
    }
}
