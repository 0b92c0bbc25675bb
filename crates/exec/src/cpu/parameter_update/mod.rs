//! Updates by elementwise optimizers: weight and moments in single precision are updated in place, others a block at a
//! time that is decoded, updated and encoded. A weight with a remainder is joined before the update and split after it.
//! Each optimizer's formula is in its own file.

mod adamw;
mod lion;

use super::CpuKernel;
use super::half::widen;
use super::parallel::{self, CHUNK};
use super::remainder::{join, split};
use super::rounding::{Draws, round_at_random};
use super::vectorize::vectorized;
use crate::call::{Call, Input, Output};
use crate::quantize::Levels;
use ::half::bf16;
use plimsoll_graph::DType;
use plimsoll_graph::ops::{ParameterUpdate, STATE_BLOCK, StateFormat, WeightFormat};
use plimsoll_graph::optimizers::Rule;
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator};
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
    update_in_single(op, formula, call);
}

fn update_in_single<const MOMENTS: usize>(op: &ParameterUpdate, formula: &impl Formula<MOMENTS>, mut call: Call) {
    let gradient = Gradient::of(&call);
    let weight = take_weight(op, &mut call, CHUNK);
    let outputs = call.take_f32_outputs();
    let mut moments = outputs.map(|moment| moment.chunks_mut(CHUNK)).collect::<Vec<_>>();
    let parts = weight.into_par_iter().zip(gradient.chunks(CHUNK));
    let of_chunk = (0..gradient.len().div_ceil(CHUNK)).map(|_| {
        let mut moments =
            moments.iter_mut().map(|chunks| chunks.next().expect("moments have the size of their weight"));
        [(); MOMENTS].map(|()| moments.next().expect("the op's types name each moment"))
    });
    let parts = parts.zip(of_chunk.collect::<Vec<_>>());
    parallel::for_each((2 + MOMENTS) * gradient.len(), parts, |((weight, gradient), moments)| {
        let mut widened = [0.0; CHUNK];
        let gradient = gradient.in_single(&mut widened);
        match weight {
            Stored::F32(weight) => formula.update(weight, moments, gradient),
            Stored::WithRemainder(of_weights, remainders) => {
                let mut weights = [0.0; CHUNK];
                let weights = &mut weights[..gradient.len()];
                join(of_weights, remainders, weights);
                formula.update(weights, moments, gradient);
                split(weights, of_weights, remainders);
            }
            Stored::Bf16(_) | Stored::Codes(..) => panic!("only weights in single precision are updated like this"),
        }
    });
}

/// The levels of signed moments, and of nonnegative ones.
static LEVELS: LazyLock<[Levels; 2]> = LazyLock::new(|| [Levels::signed(), Levels::unsigned()]);

/// A range of the gradient.
#[derive(Clone, Copy)]
enum Gradient<'a> {
    F32(&'a [f32]),
    Bf16(&'a [u8]),
}

impl<'a> Gradient<'a> {
    fn of(call: &Call<'a>) -> Self {
        match call.inputs[0] {
            Input::Raw(bytes) => Self::Bf16(bytes),
            _ => Self::F32(call.f32(0)),
        }
    }

    fn len(self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::Bf16(bytes) => bytes.len() / 2,
        }
    }

    /// In pieces of `elements` elements.
    fn chunks(self, elements: usize) -> Vec<Self> {
        match self {
            Self::F32(values) => values.chunks(elements).map(Self::F32).collect(),
            Self::Bf16(bytes) => bytes.chunks(2 * elements).map(Self::Bf16).collect(),
        }
    }

    /// One of its blocks of `STATE_BLOCK` elements; the last may be shorter.
    fn block(self, index: usize) -> Self {
        match self {
            Self::F32(values) => Self::F32(nth(values.chunks(STATE_BLOCK), index)),
            Self::Bf16(bytes) => Self::Bf16(nth(bytes.chunks(2 * STATE_BLOCK), index)),
        }
    }

    /// The values in single precision; `memory`: room for them. Panics if it is too small.
    fn in_single(self, memory: &'a mut [f32]) -> &'a [f32] {
        match self {
            Self::F32(values) => values,
            Self::Bf16(bytes) => {
                let values = &mut memory[..bytes.len() / 2];
                widen(DType::Bf16, bytes, values);
                values
            }
        }
    }
}

/// A range of a tensor that is stored in single precision or in another format.
enum Stored<'a> {
    F32(&'a mut [f32]),
    Bf16(&'a mut [u8]),
    /// Weights and their remainders.
    WithRemainder(&'a mut [bf16], &'a mut [i16]),
    /// Codes, and the scale of each block of them.
    Codes(&'a mut [u8], &'a mut [f32]),
}

/// Elements whose update is one task: few tasks need little memory.
const PIECE: usize = 64 * STATE_BLOCK;

/// One of the chunks of a tensor. Panics beyond the last.
fn nth<T>(mut chunks: impl Iterator<Item = T>, index: usize) -> T {
    chunks.nth(index).expect("all tensors of an update have as many blocks")
}

fn update_encoded<const MOMENTS: usize>(op: &ParameterUpdate, formula: &impl Formula<MOMENTS>, mut call: Call) {
    let gradient = Gradient::of(&call);
    let weight = take_weight(op, &mut call, PIECE);
    let mut outputs = std::mem::take(&mut call.outputs).into_iter();
    let mut next = || outputs.next().expect("the op's types name this output");
    let moments = [(); MOMENTS].map(|()| next());
    let scales = [(); MOMENTS].map(|()| (op.state == StateFormat::Blockwise8).then(&mut next));
    let mut moments = moments.into_iter().zip(scales).map(|(moment, scales)| coded_pieces(moment, scales).into_iter());
    let mut moments = [(); MOMENTS].map(|()| moments.next().expect("as many as there are"));
    let pieces = weight.into_iter().map(|weight| {
        (weight, moments.each_mut().map(|pieces| pieces.next().expect("moments have the size of their weight")))
    });
    let pieces = pieces.collect::<Vec<_>>();
    let levels = op.rule.moments().iter().map(|moment| &LEVELS[usize::from(!moment.is_signed)]).collect::<Vec<_>>();
    let key = [call.scalars.seed as u32, (call.scalars.seed >> 32) as u32];
    let number = call.scalars.update as u32;
    let parts = pieces.into_par_iter().zip(gradient.chunks(PIECE)).enumerate();
    parallel::for_each((2 + MOMENTS) * gradient.len(), parts, |(piece, ((mut weight, mut moments), gradient))| {
        let (mut weights, mut values) = ([0.0; STATE_BLOCK], [[0.0; STATE_BLOCK]; MOMENTS]);
        let mut widened = [0.0; STATE_BLOCK];
        for index in 0..gradient.len().div_ceil(STATE_BLOCK) {
            let gradient = gradient.block(index).in_single(&mut widened);
            let (mut weight, mut moments) = (weight.block(index), moments.each_mut().map(|moment| moment.block(index)));
            let weights = &mut weights[..gradient.len()];
            weight.load(weights, &LEVELS[0]);
            for ((moment, values), levels) in moments.iter().zip(&mut values).zip(&levels) {
                moment.load(&mut values[..gradient.len()], levels);
            }
            formula.update(weights, values.each_mut().map(|values| &mut values[..gradient.len()]), gradient);
            // Each tensor has its own random bits.
            let first = ((piece * PIECE + index * STATE_BLOCK) / 8) as u32;
            let draws = |which: u32| Draws { first, rest: [4 * op.site + which, number, ROUNDING], key };
            weight.store(weights, &LEVELS[0], &draws(0));
            for (((moment, values), levels), which) in moments.iter_mut().zip(&values).zip(&levels).zip(1..) {
                moment.store(&values[..gradient.len()], levels, &draws(which));
            }
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

/// A tensor with the scales of its blocks, if it has some, in pieces of `PIECE` elements.
fn coded_pieces<'a>(stored: Output<'a>, scales: Option<Output<'a>>) -> Vec<Stored<'a>> {
    match (stored, scales) {
        (stored, None) => pieces(stored, PIECE),
        (Output::Raw(codes), Some(Output::F32(scales))) => {
            let scales = scales.chunks_mut(PIECE / STATE_BLOCK);
            codes.chunks_mut(PIECE).zip(scales).map(|(codes, scales)| Stored::Codes(codes, scales)).collect()
        }
        (stored, scales) => panic!("{stored:?} is not scaled by {scales:?}: the op's types exclude that"),
    }
}

impl Stored<'_> {
    /// One of its blocks of `STATE_BLOCK` elements; the last may be shorter.
    fn block(&mut self, index: usize) -> Stored<'_> {
        match self {
            Self::F32(values) => Stored::F32(nth(values.chunks_mut(STATE_BLOCK), index)),
            Self::Bf16(bytes) => Stored::Bf16(nth(bytes.chunks_mut(2 * STATE_BLOCK), index)),
            Self::WithRemainder(weights, remainders) => Stored::WithRemainder(
                nth(weights.chunks_mut(STATE_BLOCK), index),
                nth(remainders.chunks_mut(STATE_BLOCK), index),
            ),
            Self::Codes(codes, scales) => {
                Stored::Codes(nth(codes.chunks_mut(STATE_BLOCK), index), nth(scales.chunks_mut(1), index))
            }
        }
    }

    fn load(&self, into: &mut [f32], levels: &Levels) {
        match self {
            Self::F32(values) => into.copy_from_slice(values),
            Self::Bf16(bytes) => widen(DType::Bf16, bytes, into),
            Self::WithRemainder(weights, remainders) => join(weights, remainders, into),
            Self::Codes(codes, scale) => decode(codes, scale[0], levels, into),
        }
    }

    /// `draws`: for values that are rounded at random.
    fn store(&mut self, values: &[f32], levels: &Levels, draws: &Draws) {
        match self {
            Self::F32(into) => into.copy_from_slice(values),
            Self::Bf16(into) => round_at_random(values, into, draws),
            Self::WithRemainder(weights, remainders) => split(values, weights, remainders),
            Self::Codes(codes, scale) => encode(values, levels, codes, &mut scale[0]),
        }
    }
}

/// Sets the codes of values, and their scale, which is the largest magnitude. Not for wider vectors: those would gather from the
/// tables of levels, which takes longer.
fn encode(values: &[f32], levels: &Levels, codes: &mut [u8], scale: &mut f32) {
    *scale = largest_magnitude(values);
    let inverse = if *scale > 0.0 { 1.0 / *scale } else { 0.0 };
    if levels.decode(0) < 0.0 {
        for (code, &value) in codes.iter_mut().zip(values) {
            *code = levels.encode(value * inverse);
        }
    } else {
        for (code, &value) in codes.iter_mut().zip(values) {
            *code = levels.encode_above_zero(value * inverse);
        }
    }
}

vectorized! {
    fn decode<S: Simd>(simd: S, codes: &[u8], scale: f32, levels: &Levels, into: &mut [f32]) {
        for (into, &code) in into.iter_mut().zip(codes) {
            *into = scale * levels.decode(code);
        }
    }

    /// The largest of the magnitudes that are numbers.
    fn largest_magnitude<S: Simd>(simd: S, values: &[f32]) -> f32 {
        // Magnitudes are in the order of their bits.
        let magnitude = |value: f32| {
            let bits = value.to_bits() & 0x7FFF_FFFF;
            if bits > 0x7F80_0000 { 0 } else { bits }
        };
        let (sixteens, rest) = values.as_chunks::<16>();
        let mut largest = [0; 16];
        for sixteen in sixteens {
            for (largest, &value) in largest.iter_mut().zip(sixteen) {
                *largest = magnitude(value).max(*largest);
            }
        }
        let largest = rest.iter().map(|&value| magnitude(value)).chain(largest).max();
        f32::from_bits(largest.unwrap_or(0))
    }
}
