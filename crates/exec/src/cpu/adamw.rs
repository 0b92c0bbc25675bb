//! AdamW, in the order of operations of PyTorch's `torch.optim.AdamW`, single-tensor form. Where weights or moments are
//! not in single precision, a block of them at a time is decoded, updated and encoded.

use super::half::widen;
use super::math::mul_add;
use super::parallel::{self, CHUNK};
use super::vectorize::vectorized;
use crate::call::{Call, Output};
use crate::philox::philox;
use crate::quantise::Levels;
use graph::DType;
use graph::ops::{self, STATE_BLOCK, StateFormat};
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};
use std::sync::LazyLock;

pub(super) fn run(op: &ops::AdamW, mut call: Call) {
    let (gradient, factor) = (call.f32(0), call.f32(1)[0]);
    if factor.is_nan() {
        return;
    }
    let rate = f64::from(op.rate) * f64::from(call.scalars.learning_rate);
    let corrections = [op.beta1, op.beta2].map(|beta| 1.0 - f64::from(beta).powf(call.scalars.update as f64));
    let step = Step {
        factor,
        beta1: op.beta1,
        beta2: op.beta2,
        eps: op.eps,
        decay: (1.0 - rate * f64::from(op.weight_decay)) as f32,
        size: (rate / corrections[0]) as f32,
        root_correction: (1.0 / corrections[1].sqrt()) as f32,
    };
    if op.weight != DType::F32 || op.state != StateFormat::F32 {
        return update_encoded(op, &step, call, gradient);
    }
    let [weight, m, v] = call.take_outputs();
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

/// The levels of the first and of the second moment.
static LEVELS: LazyLock<[Levels; 2]> = LazyLock::new(|| [Levels::signed(), Levels::unsigned()]);

/// A stretch of a tensor that is not kept in single precision, or is.
enum Stored<'a> {
    F32(&'a mut [f32]),
    Bf16(&'a mut [u8]),
    /// Codes, and the scale of these.
    Codes(&'a mut [u8], &'a mut f32),
}

fn update_encoded(op: &ops::AdamW, step: &Step, mut call: Call, gradient: &[f32]) {
    let mut outputs = std::mem::take(&mut call.outputs).into_iter();
    let mut next = || outputs.next().expect("the op's types name this output");
    let [weight, m, v] = [next(), next(), next()];
    let scales = if op.state == StateFormat::Blockwise8 { [Some(next()), Some(next())] } else { [None, None] };
    let [m_scales, v_scales] = scales;
    let stored = [blocks(weight, None), blocks(m, m_scales), blocks(v, v_scales)];
    let [weight, m, v] = stored;
    let parts = weight.into_par_iter().zip(m).zip(v).zip(gradient.par_chunks(STATE_BLOCK)).enumerate();
    let key = [call.scalars.seed as u32, (call.scalars.seed >> 32) as u32];
    let update_number = call.scalars.update as u32;
    parallel::for_each(4 * gradient.len(), parts, |(block, (((mut weight, mut m), mut v), gradient))| {
        let mut values = [[0.0; STATE_BLOCK]; 3];
        let [w32, m32, v32] = values.each_mut().map(|values| &mut values[..gradient.len()]);
        weight.load(w32, &LEVELS[0]);
        m.load(m32, &LEVELS[0]);
        v.load(v32, &LEVELS[1]);
        update(step, w32, m32, v32, gradient);
        // Each of the three rounds by bits of its own.
        let bits = |which: u32, eight: u32| {
            let number = (block * STATE_BLOCK / 8) as u32 + eight;
            philox([number, 4 * op.site + which, update_number, ROUNDING], key)
        };
        weight.store(w32, &LEVELS[0], |eight| bits(0, eight));
        m.store(m32, &LEVELS[0], |eight| bits(1, eight));
        v.store(v32, &LEVELS[1], |eight| bits(2, eight));
    });
}

/// Sets these draws of the generator apart from all others.
const ROUNDING: u32 = 0x524F_554E;

/// A tensor in blocks of `STATE_BLOCK` elements.
fn blocks<'a>(stored: Output<'a>, scales: Option<Output<'a>>) -> Vec<Stored<'a>> {
    match (stored, scales) {
        (Output::F32(values), None) => values.chunks_mut(STATE_BLOCK).map(Stored::F32).collect(),
        (Output::Raw(bytes), None) => bytes.chunks_mut(2 * STATE_BLOCK).map(Stored::Bf16).collect(),
        (Output::Raw(codes), Some(Output::F32(scales))) => {
            codes.chunks_mut(STATE_BLOCK).zip(scales).map(|(codes, scale)| Stored::Codes(codes, scale)).collect()
        }
        (stored, scales) => panic!("{stored:?} is not scaled by {scales:?}: the op's types exclude that"),
    }
}

impl Stored<'_> {
    fn load(&self, into: &mut [f32], levels: &Levels) {
        match self {
            Self::F32(values) => into.copy_from_slice(values),
            Self::Bf16(bytes) => widen(DType::Bf16, bytes, into),
            Self::Codes(codes, scale) => {
                into.iter_mut().zip(&**codes).for_each(|(into, &code)| *into = **scale * levels.decode(code));
            }
        }
    }

    /// `bits(i)` are random bits for the i-th eight elements.
    fn store(&mut self, values: &[f32], levels: &Levels, bits: impl Fn(u32) -> [u32; 4]) {
        match self {
            Self::F32(into) => into.copy_from_slice(values),
            Self::Bf16(into) => {
                for ((into, values), eight) in into.chunks_mut(16).zip(values.chunks(8)).zip(0..) {
                    let words = bits(eight);
                    for (i, (into, &value)) in into.chunks_exact_mut(2).zip(values).enumerate() {
                        let half = (words[i / 2] >> (16 * (i % 2))) as u16;
                        into.copy_from_slice(&round_at_random(value, half).to_le_bytes());
                    }
                }
            }
            Self::Codes(codes, scale) => {
                let largest = values.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
                **scale = largest;
                let inverse = if largest > 0.0 { 1.0 / largest } else { 0.0 };
                let second_moments = levels.decode(0) == 0.0;
                for (code, &value) in codes.iter_mut().zip(values) {
                    let part = value * inverse;
                    *code = if second_moments { levels.encode_above_zero(part) } else { levels.encode(part) };
                }
            }
        }
    }
}

/// The bits of one of the two nearest values in `Bf16`, the nearer one the likelier: exact on average.
fn round_at_random(value: f32, random: u16) -> u16 {
    let bits = value.to_bits();
    if !value.is_finite() {
        return (bits >> 16) as u16 | u16::from(value.is_nan());
    }
    (bits.wrapping_add(u32::from(random)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::half::bf16;

    #[test]
    fn rounding_at_random_is_exact_on_average() {
        for value in [1.0f32, 1.001, -3.1234567, 1e-30, 0.0, -2.5e-3, 7.77e20] {
            let total: f64 = (0..=u16::MAX).map(|r| bf16::from_bits(round_at_random(value, r)).to_f64()).sum();
            let mean = total / 65536.0;
            assert!((mean - f64::from(value)).abs() <= 1e-6 * f64::from(value.abs()), "{value}: {mean}");
        }
        assert!(bf16::from_bits(round_at_random(f32::NAN, 9)).is_nan());
        assert_eq!(round_at_random(f32::INFINITY, u16::MAX), bf16::INFINITY.to_bits());
    }
}
