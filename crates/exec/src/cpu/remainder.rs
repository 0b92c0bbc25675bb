//! Weights in `Bf16` and the 16 bits by which single precision differs from them: an optimizer updates both, everything
//! else reads the weight alone.
//!
//! ```text
//!   F32        s eeeeeeee mmmmmmm nnnnnnnnnnnnnnnn        = weight · 2^16 + remainder, as whole numbers
//!   weight     s eeeeeeee mmmmmmm  (+ 1 from the tie on)  rounded to nearest, ties away from zero
//!   remainder                     nnnnnnnnnnnnnnnn        signed: from the tie on it is below zero
//! ```
//! Rounding ties to even would need a remainder of +2^15, which 16 bits can't represent. A value that rounds to
//! infinity is restored by its remainder. NaN keeps its upper bits, so that both forms are NaN.

use super::vectorize::vectorized;
use ::half::{bf16, f16};
use plimsoll_graph::DType;

/// The bits of the nearest weight, and its remainder.
#[inline(always)]
fn parts(value: f32) -> (u16, i16) {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x8000) >> 16;
    let is_number = bits & 0x7FFF_FFFF <= 0x7F80_0000;
    // Rounding up could turn NaN into zero.
    let weight = if is_number { rounded } else { bits >> 16 | 0x40 };
    let remainder = if is_number { bits } else { 0 };
    (weight as u16, remainder as i16)
}

/// The number with this weight and remainder.
#[inline(always)]
fn whole(weight: u16, remainder: i16) -> f32 {
    f32::from_bits((u32::from(weight) << 16).wrapping_add(i32::from(remainder) as u32))
}

/// The nearest weight in `Bf16`.
pub fn rounded_weight(value: f32) -> bf16 {
    bf16::from_bits(parts(value).0)
}

vectorized! {
    /// Panics if the lengths differ.
    pub(super) fn join<S: Simd>(simd: S, weights: &[bf16], remainders: &[i16], into: &mut [f32]) {
        assert_eq!([weights.len(), remainders.len()], [into.len(); 2], "elements to join");
        for ((into, weight), &remainder) in into.iter_mut().zip(weights).zip(remainders) {
            *into = whole(weight.to_bits(), remainder);
        }
    }

    /// Panics if the lengths differ.
    pub(super) fn split<S: Simd>(simd: S, from: &[f32], weights: &mut [bf16], remainders: &mut [i16]) {
        assert_eq!([weights.len(), remainders.len()], [from.len(); 2], "elements to split");
        for ((&from, weight), remainder) in from.iter().zip(weights).zip(remainders) {
            let of_it = parts(from);
            (*weight, *remainder) = (bf16::from_bits(of_it.0), of_it.1);
        }
    }

    /// The weights alone. Panics if the lengths differ.
    pub(super) fn round<S: Simd>(simd: S, from: &[f32], weights: &mut [bf16]) {
        assert_eq!(from.len(), weights.len(), "elements to round");
        for (&from, weight) in from.iter().zip(weights) {
            *weight = bf16::from_bits(parts(from).0);
        }
    }
}

/// The remainders of values of this type after rounding to `Bf16`, as bytes. Panics if the type is not a float.
pub fn remainders(values: &[u8], from: DType) -> Vec<u8> {
    let of_value = |value: &[u8]| parts(single(value, from)).1.to_le_bytes();
    values.chunks_exact(from.size_bytes() as usize).flat_map(of_value).collect()
}

/// The bytes in single precision of weights in `Bf16` with their remainders. Panics if the lengths differ.
pub fn joined(weights: &[u8], remainders: &[u8]) -> Vec<u8> {
    assert_eq!(weights.len(), remainders.len(), "bytes to join");
    let mut bytes = Vec::with_capacity(2 * weights.len());
    for (weight, remainder) in weights.as_chunks().0.iter().zip(remainders.as_chunks().0) {
        bytes.extend_from_slice(&whole(u16::from_le_bytes(*weight), i16::from_le_bytes(*remainder)).to_le_bytes());
    }
    bytes
}

/// A value of this type, at any alignment. Panics if the type is not a float.
pub(super) fn single(value: &[u8], dtype: DType) -> f32 {
    match (dtype, value) {
        (DType::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
        (DType::Bf16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
        (other, _) => panic!("{other:?} is not a float type"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Critical bit patterns, and a stride through all others that is not a power of two.
    fn critical_bits() -> Vec<u32> {
        let lows = [0x0000, 0x0001, 0x7FFE, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF];
        let around_each_upper_half = (0..=u32::from(u16::MAX)).flat_map(|high| lows.map(|low| high << 16 | low));
        around_each_upper_half.chain((0..=u32::MAX).step_by(6_151)).collect()
    }

    /// By the kernels, on the machine's vectors, including pieces that do not fill one.
    fn split_and_joined(values: &[f32]) -> (Vec<bf16>, Vec<i16>, Vec<f32>) {
        let (mut weights, mut remainders, mut back) =
            (vec![bf16::ZERO; values.len()], vec![0; values.len()], vec![0.0; values.len()]);
        split(values, &mut weights, &mut remainders);
        join(&weights, &remainders, &mut back);
        (weights, remainders, back)
    }

    #[test]
    fn every_number_is_its_weight_and_its_remainder() {
        for values in critical_bits().chunks(997) {
            let values = values.iter().map(|&bits| f32::from_bits(bits)).collect::<Vec<_>>();
            let (weights, remainders, back) = split_and_joined(&values);
            let mut rounded = vec![bf16::ZERO; values.len()];
            round(&values, &mut rounded);
            assert_eq!(bytemuck::cast_slice::<_, u16>(&rounded), bytemuck::cast_slice::<_, u16>(&weights));
            for (((value, weight), remainder), back) in values.iter().zip(weights).zip(remainders).zip(back) {
                let bits = value.to_bits();
                assert_eq!(weight.to_bits(), rounded_weight(*value).to_bits(), "{bits:#x}");
                if value.is_nan() {
                    assert!(weight.is_nan() && back.is_nan() && remainder == 0, "{bits:#x}");
                    assert_eq!(weight.is_sign_negative(), value.is_sign_negative(), "{bits:#x}");
                    continue;
                }
                assert_eq!(back.to_bits(), bits, "{bits:#x}");
                // To nearest, as the library does, except that ties round away from zero.
                let is_tie = bits & 0xFFFF == 0x8000;
                let expected = if is_tie { (bits >> 16) as u16 + 1 } else { bf16::from_f32(*value).to_bits() };
                assert_eq!(weight.to_bits(), expected, "{bits:#x}");
            }
        }
    }

    #[test]
    fn ends_of_the_range_survive() {
        let cases = [
            (f32::INFINITY, 0x7F80, 0),
            (f32::NEG_INFINITY, 0xFF80, 0),
            (f32::MAX, 0x7F80, -1),
            (f32::MIN, 0xFF80, -1),
            (f32::from_bits(0x7F7F_8000), 0x7F80, i16::MIN),
            (f32::from_bits(0x7F7F_7FFF), 0x7F7F, i16::MAX),
            (0.0, 0, 0),
            (-0.0, 0x8000, 0),
            (f32::from_bits(1), 0, 1),
            (f32::from_bits(0x8000_8000), 0x8001, i16::MIN),
            // NaN as processors make it, as cards make it, and the one closest to infinity.
            (f32::from_bits(0xFFC0_0000), 0xFFC0, 0),
            (f32::from_bits(0x7FFF_FFFF), 0x7FFF, 0),
            (f32::from_bits(0x7F80_0001), 0x7FC0, 0),
        ];
        for (value, weight, remainder) in cases {
            assert_eq!(parts(value), (weight, remainder), "{:#x}", value.to_bits());
            let (_, _, back) = split_and_joined(&[value]);
            assert!(back[0].to_bits() == value.to_bits() || value.is_nan() && back[0].is_nan());
        }
    }

    #[test]
    fn files_are_joined_and_split_as_tensors_are() {
        let values = critical_bits().into_iter().step_by(11).map(f32::from_bits).collect::<Vec<_>>();
        let (weights, kept, back) = split_and_joined(&values);
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
        assert_eq!(remainders(&bytes, DType::F32), bytemuck::cast_slice::<_, u8>(&kept));
        let whole = joined(bytemuck::cast_slice(&weights), bytemuck::cast_slice(&kept));
        assert_eq!(whole, bytemuck::cast_slice::<_, u8>(&back));
        // The remainder of a number in `Bf16` is zero.
        assert!(remainders(bytemuck::cast_slice(&weights), DType::Bf16).iter().all(|&byte| byte == 0));
    }
}
