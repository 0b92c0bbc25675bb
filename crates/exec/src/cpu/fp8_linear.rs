//! Linear layers with factors of 8 bits. A processor has no products of such numbers: both factors are rounded to copies of their
//! own type, which represents the rounded numbers exactly, and multiplied as they are.

use super::CpuKernel;
use super::half::Float;
use super::parallel::{self, CHUNK};
use super::tiles::{operand, widened};
use crate::call::{Call, Input};
use ::half::{bf16, f16};
use plimsoll_graph::DType;
use plimsoll_graph::ops::{Fp8, Fp8Linear, LinearWeightGrad};
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};
use std::sync::atomic::{AtomicU32, Ordering};

impl CpuKernel for Fp8Linear {
    fn run(&self, mut call: Call) {
        let mut rest = call.take_scratch();
        let formats = self.formats();
        let mut inputs = call.inputs.clone();
        for (index, format) in formats.into_iter().enumerate() {
            let words = Self::on_processor(call.io.inputs[index]).0 as usize / size_of::<f32>();
            let (copy, further) = rest.split_at_mut(words);
            inputs[index] = match call.io.inputs[index].dtype {
                DType::F32 => Input::F32(rounded::<f32>(format, &call, index, copy)),
                DType::F16 => Input::Raw(bytemuck::cast_slice(rounded::<f16>(format, &call, index, copy))),
                _ => Input::Raw(bytemuck::cast_slice(rounded::<bf16>(format, &call, index, copy))),
            };
            rest = further;
        }
        match self {
            Self::Forward(op) => op.run(Call { inputs, scratch: rest, ..call }),
            Self::InputGrad(op) => op.run(Call { inputs, scratch: rest, ..call }),
            Self::WeightGrad(op) => {
                let Call { io, scalars, threads, .. } = call;
                let mut outputs = call.outputs.into_iter();
                let first = outputs.by_ref().take(1).collect();
                let of_weight = Call { inputs, outputs: first, scratch: rest, io: io.clone(), scalars, threads };
                LinearWeightGrad { bias: false, ..*op }.run(of_weight);
                if op.bias {
                    let outputs = outputs.collect();
                    let of_bias = Call { inputs: call.inputs, outputs, scratch: rest, io, scalars, threads };
                    LinearWeightGrad { weight: false, ..*op }.run(of_bias);
                }
            }
        }
    }
}

/// Numbers that are widened at a time.
const TILE: usize = 256;

/// Rounds an operand into a copy.
fn rounded<'a, E: Float>(format: Fp8, call: &Call, index: usize, copy: &'a mut [f32]) -> &'a [E] {
    let from: &[E] = operand(call, index);
    let copy = &mut bytemuck::cast_slice_mut::<f32, E>(copy)[..from.len()];
    let largest = AtomicU32::new(0);
    parallel::for_each(from.len(), from.par_chunks(CHUNK), |from| {
        let magnitudes = |from: &[f32]| from.iter().map(|value| value.to_bits() << 1 >> 1).max().unwrap_or(0);
        let mut tile = [0.0; TILE];
        let most = from.chunks(TILE).map(|from| magnitudes(widened(from, &mut tile))).max().unwrap_or(0);
        largest.fetch_max(most, Ordering::Relaxed);
    });
    let scale = scale_of(format, largest.into_inner());
    let parts = from.par_chunks(CHUNK).zip(copy.par_chunks_mut(CHUNK));
    parallel::for_each(from.len(), parts, |(from, copy)| {
        let (mut tile, mut results) = ([0.0; TILE], [0.0; TILE]);
        for (from, copy) in from.chunks(TILE).zip(copy.chunks_mut(TILE)) {
            let results = &mut results[..from.len()];
            for (result, value) in results.iter_mut().zip(widened(from, &mut tile)) {
                *result = rounded_to(format, value * scale) / scale;
            }
            E::round(results, copy);
        }
    });
    copy
}

/// The power of two for a tensor whose largest magnitude has these bits: NaN if a number is not finite, one if all are zero.
fn scale_of(format: Fp8, largest: u32) -> f32 {
    const FRACTION: u32 = (1 << 23) - 1;
    if largest >= f32::INFINITY.to_bits() {
        return f32::NAN;
    }
    if largest == 0 {
        return 1.0;
    }
    let is_above = largest & FRACTION > 1.75f32.to_bits() & FRACTION;
    let exponent = (largest >> 23) as i32 - 127 + i32::from(is_above);
    let scale = (format.largest_exponent() - exponent).clamp(-126, 126);
    f32::from_bits(((scale + 127) as u32) << 23)
}

/// The nearest number of a format to one in its range, ties to even: adding and subtracting a number drops the bits that are
/// below its last one.
fn rounded_to(format: Fp8, value: f32) -> f32 {
    const EXPONENT: u32 = 0xff << 23;
    let smallest = ((format.smallest_exponent() + 127) as u32) << 23;
    let exponent = (value.to_bits() & EXPONENT).max(smallest);
    let dropped = f32::from_bits(exponent + ((23 - format.fraction_bits() as u32) << 23)) * 1.5;
    value + dropped - dropped
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All numbers of a format from zero on, but not the last, which is the largest.
    fn numbers(format: Fp8) -> Vec<f32> {
        let steps = 1 << format.fraction_bits();
        let in_binade = |exponent: i32| (0..steps).map(move |n| (1.0 + n as f32 / steps as f32) * 2f32.powi(exponent));
        let least = 2f32.powi(format.smallest_exponent());
        let below = (0..steps).map(|n| n as f32 / steps as f32 * least);
        let all = below.chain((format.smallest_exponent()..=format.largest_exponent()).flat_map(in_binade));
        all.filter(|number| *number <= 1.75 * 2f32.powi(format.largest_exponent())).collect()
    }

    #[test]
    fn numbers_between_two_are_rounded_to_the_nearer_and_ties_to_the_even_one() {
        for (format, count) in [(Fp8::E4m3, 127), (Fp8::E5m2, 124)] {
            let all = numbers(format);
            assert_eq!(all.len(), count, "{format:?}");
            for (index, pair) in all.windows(2).enumerate() {
                let [low, high] = [pair[0], pair[1]];
                let middle = 0.5 * (low + high);
                let even = if index.is_multiple_of(2) { low } else { high };
                for (value, expected) in [
                    (low, low),
                    (high, high),
                    (middle, even),
                    (f32::from_bits(middle.to_bits() - 1), low),
                    (f32::from_bits(middle.to_bits() + 1), high),
                ] {
                    assert_eq!(rounded_to(format, value), expected, "{format:?}: {value}");
                    assert_eq!(rounded_to(format, -value), -expected, "{format:?}: -{value}");
                }
            }
        }
    }

    #[test]
    fn the_largest_number_is_in_the_upper_half_of_the_range() {
        for format in [Fp8::E4m3, Fp8::E5m2] {
            let most = 1.75 * 2f32.powi(format.largest_exponent());
            for largest in [1.0f32, 1.75, 1.7500001, 1.9, 3e-5, 448.0, 57344.0, 1e30, 1e-30] {
                let scaled = largest * scale_of(format, largest.to_bits());
                assert!(scaled <= most && scaled * 2.0 > most, "{format:?}: {largest} {scaled}");
            }
            assert_eq!(scale_of(format, 0), 1.0);
            assert!(scale_of(format, f32::INFINITY.to_bits()).is_nan());
            assert!(scale_of(format, f32::NAN.to_bits()).is_nan());
        }
    }
}
