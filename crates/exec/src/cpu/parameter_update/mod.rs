//! Updates by elementwise optimizers: weight and moments in single precision are updated in place, others a block at a
//! time that is decoded, updated and encoded. A weight with a remainder is joined before the update and split after it.
//! Each optimizer's formula is in its own file.

mod adamw;
mod lion;

use super::CpuKernel;
use super::half::widen;
use super::parallel::{self, CHUNK};
use super::remainder::{join, split};
use crate::call::{Call, Output};
use crate::philox::philox;
use crate::quantize::Levels;
use ::half::bf16;
use plimsoll_graph::DType;
use plimsoll_graph::ops::{ParameterUpdate, STATE_BLOCK, StateFormat, WeightFormat};
use plimsoll_graph::optimizers::Rule;
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator};
use rayon::slice::ParallelSlice;
use std::sync::LazyLock;

/// An optimizer's update of a range of a weight and of its moments, given the same range of the gradient.
trait Formula<const MOMENTS: usize>: Sync {
    fn update(&self, weight: &mut [f32], moments: [&mut [f32]; MOMENTS], gradient: &[f32]);
}

/// Values that all elements of an update share.
struct Step {
    /// Factor of gradients.
    factor: f32,
    /// The learning rate.
    rate: f64,
    /// Factor of a weight that applies its decay.
    decay: f32,
    /// Number of the update, counted from 1.
    number: u64,
}

impl CpuKernel for ParameterUpdate {
    fn run(&self, call: Call) {
        let factor = call.f32(1)[0];
        if factor.is_nan() {
            return;
        }
        let rate = f64::from(self.rate) * f64::from(call.scalars.learning_rate);
        let decay = (1.0 - rate * f64::from(self.weight_decay)) as f32;
        let step = Step { factor, rate, decay, number: call.scalars.update };
        match &self.rule {
            Rule::AdamW(rule) => update(self, &adamw::Formula::new(rule, &step), call),
            Rule::Lion(rule) => update(self, &lion::Formula::new(rule, &step), call),
        }
    }
}

fn update<const MOMENTS: usize>(op: &ParameterUpdate, formula: &impl Formula<MOMENTS>, call: Call) {
    if op.weight == WeightFormat::Bf16 || op.state != StateFormat::F32 {
        return update_encoded(op, formula, call);
    }
    update_as_it_lies(op, formula, call);
}

fn update_as_it_lies<const MOMENTS: usize>(op: &ParameterUpdate, formula: &impl Formula<MOMENTS>, mut call: Call) {
    let gradient = call.f32(0);
    let weight = take_weight(op, &mut call, CHUNK);
    let outputs = call.take_f32_outputs();
    let mut moments = outputs.map(|moment| moment.chunks_mut(CHUNK)).collect::<Vec<_>>();
    let parts = weight.into_par_iter().zip(gradient.par_chunks(CHUNK));
    let of_chunk = (0..gradient.len().div_ceil(CHUNK)).map(|_| {
        let mut moments =
            moments.iter_mut().map(|chunks| chunks.next().expect("moments have the size of their weight"));
        [(); MOMENTS].map(|()| moments.next().expect("the op's types name each moment"))
    });
    let parts = parts.zip(of_chunk.collect::<Vec<_>>());
    parallel::for_each((2 + MOMENTS) * gradient.len(), parts, |((weight, gradient), moments)| match weight {
        Stored::F32(weight) => formula.update(weight, moments, gradient),
        mut stored => {
            let mut weights = [0.0; CHUNK];
            let weights = &mut weights[..gradient.len()];
            stored.load(weights, &LEVELS[0]);
            formula.update(weights, moments, gradient);
            stored.store(weights, &LEVELS[0], |_| panic!("nothing here is rounded at random"));
        }
    });
}

/// The levels of signed moments, and of nonnegative ones.
static LEVELS: LazyLock<[Levels; 2]> = LazyLock::new(|| [Levels::signed(), Levels::unsigned()]);

/// A range of a tensor that is stored in single precision or in another format.
enum Stored<'a> {
    F32(&'a mut [f32]),
    Bf16(&'a mut [u8]),
    /// Weights and their remainders.
    WithRemainder(&'a mut [bf16], &'a mut [i16]),
    /// Codes and their scale.
    Codes(&'a mut [u8], &'a mut f32),
}

fn update_encoded<const MOMENTS: usize>(op: &ParameterUpdate, formula: &impl Formula<MOMENTS>, mut call: Call) {
    let gradient = call.f32(0);
    let weight = take_weight(op, &mut call, STATE_BLOCK);
    let mut outputs = std::mem::take(&mut call.outputs).into_iter();
    let mut next = || outputs.next().expect("the op's types name this output");
    let moments = [(); MOMENTS].map(|()| next());
    let scales = [(); MOMENTS].map(|()| (op.state == StateFormat::Blockwise8).then(&mut next));
    let mut moments = moments.into_iter().zip(scales).map(|(moment, scales)| blocks(moment, scales).into_iter());
    let mut moments = [(); MOMENTS].map(|()| moments.next().expect("as many as there are"));
    let blocks = weight.into_iter().map(|weight| {
        (weight, moments.each_mut().map(|blocks| blocks.next().expect("moments have the size of their weight")))
    });
    let blocks = blocks.collect::<Vec<_>>();
    let levels = op.rule.moments().iter().map(|moment| &LEVELS[usize::from(!moment.is_signed)]).collect::<Vec<_>>();
    let key = [call.scalars.seed as u32, (call.scalars.seed >> 32) as u32];
    let number = call.scalars.update as u32;
    let parts = blocks.into_par_iter().zip(gradient.par_chunks(STATE_BLOCK)).enumerate();
    parallel::for_each((2 + MOMENTS) * gradient.len(), parts, |(block, ((mut weight, mut moments), gradient))| {
        let (mut weights, mut values) = ([0.0; STATE_BLOCK], [[0.0; STATE_BLOCK]; MOMENTS]);
        let weights = &mut weights[..gradient.len()];
        weight.load(weights, &LEVELS[0]);
        for ((moment, values), levels) in moments.iter().zip(&mut values).zip(&levels) {
            moment.load(&mut values[..gradient.len()], levels);
        }
        formula.update(weights, values.each_mut().map(|values| &mut values[..gradient.len()]), gradient);
        // Each tensor has its own random bits.
        let bits = |which: u32, eight: u32| {
            let eight = (block * STATE_BLOCK / 8) as u32 + eight;
            philox([eight, 4 * op.site + which, number, ROUNDING], key)
        };
        weight.store(weights, &LEVELS[0], |eight| bits(0, eight));
        for (((moment, values), levels), which) in moments.iter_mut().zip(&values).zip(&levels).zip(1..) {
            moment.store(&values[..gradient.len()], levels, |eight| bits(which, eight));
        }
    });
}

/// Separates these draws of the generator from all others.
const ROUNDING: u32 = 0x524F_554E;

/// Takes the weight from the results, in pieces of `elements` elements.
fn take_weight<'a>(op: &ParameterUpdate, call: &mut Call<'a>, elements: usize) -> Vec<Stored<'a>> {
    let weight = call.outputs.remove(0);
    if op.weight != WeightFormat::Bf16AndRemainder {
        return pieces(weight, elements);
    }
    match (weight, call.outputs.remove(0)) {
        (Output::Raw(weights), Output::Raw(remainders)) => {
            let weights = bytemuck::cast_slice_mut(weights).chunks_mut(elements);
            let remainders = bytemuck::cast_slice_mut(remainders).chunks_mut(elements);
            weights.zip(remainders).map(|(weights, remainders)| Stored::WithRemainder(weights, remainders)).collect()
        }
        (weight, remainder) => panic!("{weight:?} has no remainder {remainder:?}: the op's types exclude that"),
    }
}

/// A tensor without scales and remainder, in pieces of `elements` elements.
fn pieces(stored: Output<'_>, elements: usize) -> Vec<Stored<'_>> {
    match stored {
        Output::F32(values) => values.chunks_mut(elements).map(Stored::F32).collect(),
        Output::Raw(bytes) => bytes.chunks_mut(2 * elements).map(Stored::Bf16).collect(),
    }
}

/// A tensor in blocks of `STATE_BLOCK` elements.
fn blocks<'a>(stored: Output<'a>, scales: Option<Output<'a>>) -> Vec<Stored<'a>> {
    match (stored, scales) {
        (stored, None) => pieces(stored, STATE_BLOCK),
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
            Self::WithRemainder(weights, remainders) => join(weights, remainders, into),
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
            Self::WithRemainder(weights, remainders) => split(values, weights, remainders),
            Self::Codes(codes, scale) => {
                let largest = values.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
                **scale = largest;
                let inverse = if largest > 0.0 { 1.0 / largest } else { 0.0 };
                let is_signed = levels.decode(0) < 0.0;
                for (code, &value) in codes.iter_mut().zip(values) {
                    let part = value * inverse;
                    *code = if is_signed { levels.encode(part) } else { levels.encode_above_zero(part) };
                }
            }
        }
    }
}

/// The bits of one of the two nearest values in `Bf16`, chosen at random so that the mean is exact.
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
