//! Codes of 4 bits, with quantized scales: the same values as bitsandbytes' `quantize_4bit` with `nf4` and
//! `compress_statistics`, and as its `dequantize_4bit`.
//!
//! Two of bitsandbytes' results depend on the machine: the mean of the scales, whose order of summation depends on the
//! number of threads and the width of vectors; and on processors the codes of scales, which its library looks up in a
//! table of 65,536 rounded values. Here the mean is rounded once, and each code is the nearest, as on GPUs.

use plimsoll_graph::{NESTED_BLOCK, NF4_BLOCK};
use rayon::prelude::*;
use std::sync::LazyLock;

/// The values of the codes, as parts of the scale: quantiles of a normal distribution. Source: bitsandbytes'
/// `get_4bit_type`.
pub(crate) const LEVELS: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The values of both codes of each byte, the higher four bits first.
static PAIRS: LazyLock<[[f32; 2]; 256]> =
    LazyLock::new(|| std::array::from_fn(|byte| [LEVELS[byte >> 4], LEVELS[byte & 15]]));

/// The values of the codes of scales, ascending, as parts of their scale: bitsandbytes' `create_dynamic_map`, whose
/// values are rounded at every operation.
static SCALE_LEVELS: LazyLock<[f32; 256]> = LazyLock::new(|| {
    const DECADES: [f32; 7] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];
    const FIRST: f32 = 0.1;
    let mut levels = vec![0.0, 1.0];
    for (number, decade) in DECADES.into_iter().enumerate() {
        let parts = 1usize << number;
        let step = (1.0 - FIRST) / parts as f32;
        // As `torch.linspace`: from both ends to the middle.
        let bound = |k: usize| match k < parts.div_ceil(2) {
            true => step.mul_add(k as f32, FIRST),
            false => (-step).mul_add((parts - k) as f32, 1.0),
        };
        for part in 0..parts {
            let level = decade * ((bound(part) + bound(part + 1)) / 2.0);
            levels.extend([level, -level]);
        }
    }
    levels.sort_by(f32::total_cmp);
    levels.try_into().expect("254 levels in the decades, zero and one")
});

/// The values of the codes of scales.
pub(crate) fn scale_levels() -> &'static [f32; 256] {
    &SCALE_LEVELS
}

/// The least scale by which weights are divided. Source: bitsandbytes' `quantize_4bit`.
const LEAST_SCALE: f32 = 1e-38;

/// The index of the nearest level of an ascending list; of two, the lower.
fn nearest(levels: &[f32], value: f32) -> u8 {
    let is_below = |index: usize| (levels[index] + levels[index + 1]) / 2.0 < value;
    let (mut first, mut end) = (0, levels.len() - 1);
    while first < end {
        let middle = usize::midpoint(first, end);
        if is_below(middle) { first = middle + 1 } else { end = middle }
    }
    first as u8
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0f32, |most, value| most.max(value.abs()))
}

/// Weights that a worker encodes at a time: whole blocks.
const PART: usize = 64 * NF4_BLOCK;

/// The codes of weights, of which the first begins a block; appends the blocks' scales.
pub(super) fn encode(weights: &[f32], absmax: &mut Vec<f32>) -> Vec<u8> {
    let parts = weights.par_chunks(PART).map(encode_part).collect::<Vec<_>>();
    let mut codes = Vec::with_capacity(weights.len().div_ceil(2));
    for (of_part, scales) in parts {
        codes.extend(of_part);
        absmax.extend(scales);
    }
    codes
}

/// The codes of weights and the scales of their blocks.
fn encode_part(weights: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let mut codes = Vec::with_capacity(weights.len().div_ceil(2));
    let mut absmax = Vec::with_capacity(weights.len().div_ceil(NF4_BLOCK));
    let mut higher = None;
    for block in weights.chunks(NF4_BLOCK) {
        let largest = largest(block);
        let divisor = largest.max(LEAST_SCALE);
        // As bitsandbytes, which divides only in a block that is not whole, and stores the divisor.
        let is_whole = block.len() == NF4_BLOCK;
        absmax.push(if is_whole { largest } else { divisor });
        for &weight in block {
            let part = if is_whole { weight * (1.0 / divisor) } else { weight / divisor };
            let code = nearest(&LEVELS, part.clamp(-1.0, 1.0));
            match higher.take() {
                None => higher = Some(code << 4),
                Some(higher) => codes.push(higher | code),
            }
        }
    }
    codes.extend(higher);
    (codes, absmax)
}

/// The mean of scales, rounded once.
pub(super) fn mean(absmax: &[f32]) -> f32 {
    (absmax.iter().map(|&scale| f64::from(scale)).sum::<f64>() / absmax.len() as f64) as f32
}

/// The codes of scales after the offset is subtracted, and the scales of the codes. Codes of zeros alone are zero, as
/// those of NaN.
pub(super) fn encode_scales(absmax: &[f32], offset: f32) -> (Vec<u8>, Vec<f32>) {
    let centered = absmax.iter().map(|scale| scale - offset).collect::<Vec<_>>();
    let nested = centered.chunks(NESTED_BLOCK).map(largest).collect::<Vec<_>>();
    let blocks = centered.chunks(NESTED_BLOCK).zip(&nested);
    let code = |value: f32, largest: f32| nearest(scale_levels(), (value * (1.0 / largest)).clamp(-1.0, 1.0));
    (blocks.flat_map(|(block, &largest)| block.iter().map(move |&value| code(value, largest))).collect(), nested)
}

/// The scale of a block of weights.
#[inline(always)]
pub(super) fn scale(absmax: &[u8], nested_absmax: &[f32], offset: f32, block: usize) -> f32 {
    scale_levels()[usize::from(absmax[block])] * nested_absmax[block / NESTED_BLOCK] + offset
}

/// The weights from index `first` of the matrix on; `scale` returns the scale of a block.
pub(super) fn decode(codes: &[u8], mut first: usize, scale: impl Fn(usize) -> f32, mut into: &mut [f32]) {
    let pairs = &*PAIRS;
    while !into.is_empty() {
        let count = into.len().min(NF4_BLOCK - first % NF4_BLOCK);
        let (block, rest) = into.split_at_mut(count);
        let scale = scale(first / NF4_BLOCK);
        // A pair may begin before the first weight, or end after the last.
        let (before, pairwise) = block.split_at_mut(first % 2);
        if let [weight] = before {
            *weight = pairs[usize::from(codes[first / 2])][1] * scale;
        }
        let codes = &codes[first.div_ceil(2)..];
        let (whole, last) = pairwise.as_chunks_mut::<2>();
        for (weights, code) in whole.iter_mut().zip(codes) {
            *weights = pairs[usize::from(*code)].map(|level| level * scale);
        }
        if let [weight] = last {
            *weight = pairs[usize::from(codes[whole.len()])][0] * scale;
        }
        (first, into) = (first + count, rest);
    }
}
