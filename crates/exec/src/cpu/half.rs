//! Half precision on the processor, where most kernels compute in single precision: conversions of tensors in memory.
//! `tiles.rs` uses them for kernels.

use super::matrix::Matrix;
use super::parallel::{self, CHUNK};
use super::remainder::{rounded_weight, single};
use super::sums::accumulate;
use super::tiled::Factor;
use super::vectorize::vectorized;
use ::half::slice::HalfFloatSliceExt;
use ::half::{bf16, f16};
use bytemuck::Pod;
use plimsoll_graph::DType;
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};
use std::borrow::Cow;

/// A precision of stored tensors.
pub(super) trait Float: Pod + Send + Sync {
    /// Its name among the types.
    const DTYPE: DType;

    /// Values in single precision. Panics if the lengths differ.
    fn widen(from: &[Self], into: &mut [f32]);

    /// Adds values in this precision to values in single precision. Panics if the lengths differ.
    fn accumulate(from: &[Self], into: &mut [f32]);

    /// Values rounded to the nearest. Panics if the lengths differ.
    fn round(from: &[f32], into: &mut [Self]);

    /// A matrix as a factor of a product.
    fn factor(matrix: Matrix<Self>) -> Factor;
}

impl Float for f32 {
    const DTYPE: DType = DType::F32;

    fn widen(from: &[Self], into: &mut [f32]) {
        into.copy_from_slice(from);
    }

    fn accumulate(from: &[Self], into: &mut [f32]) {
        accumulate(into, from);
    }

    fn round(from: &[f32], into: &mut [Self]) {
        into.copy_from_slice(from);
    }

    fn factor(matrix: Matrix<Self>) -> Factor {
        matrix.into()
    }
}

impl Float for f16 {
    const DTYPE: DType = DType::F16;

    fn widen(from: &[Self], into: &mut [f32]) {
        from.convert_to_f32_slice(into);
    }

    fn accumulate(from: &[Self], into: &mut [f32]) {
        const TILE: usize = 64;
        assert_eq!(from.len(), into.len(), "elements to add");
        for (from, into) in from.chunks(TILE).zip(into.chunks_mut(TILE)) {
            let mut tile = [0.0; TILE];
            let tile = &mut tile[..from.len()];
            Self::widen(from, tile);
            accumulate(into, tile);
        }
    }

    fn round(from: &[f32], into: &mut [Self]) {
        into.convert_from_f32_slice(from);
    }

    fn factor(matrix: Matrix<Self>) -> Factor {
        matrix.into()
    }
}

impl Float for bf16 {
    const DTYPE: DType = DType::Bf16;

    fn widen(from: &[Self], into: &mut [f32]) {
        widen_bf16(from, into);
    }

    fn accumulate(from: &[Self], into: &mut [f32]) {
        accumulate_bf16(from, into);
    }

    fn round(from: &[f32], into: &mut [Self]) {
        round_to_bf16(from, into);
    }

    fn factor(matrix: Matrix<Self>) -> Factor {
        matrix.into()
    }
}

/// The same bits as `bf16::to_f32`, without a branch: NaN becomes quiet.
#[inline(always)]
fn single_of(value: bf16) -> f32 {
    let bits = u32::from(value.to_bits());
    let quiet = if bits & 0x7FFF > 0x7F80 { 0x40 } else { 0 };
    f32::from_bits((bits | quiet) << 16)
}

vectorized! {
    fn widen_bf16<S: Simd>(simd: S, from: &[bf16], into: &mut [f32]) {
        assert_eq!(from.len(), into.len(), "elements to widen");
        for (into, &from) in into.iter_mut().zip(from) {
            *into = single_of(from);
        }
    }

    fn accumulate_bf16<S: Simd>(simd: S, from: &[bf16], into: &mut [f32]) {
        assert_eq!(from.len(), into.len(), "elements to add");
        for (into, &from) in into.iter_mut().zip(from) {
            *into += single_of(from);
        }
    }

    /// The same bits as `bf16::from_f32`: ties to even, and NaN becomes quiet. The processor's own instruction would
    /// flush subnormal numbers.
    fn round_to_bf16<S: Simd>(simd: S, from: &[f32], into: &mut [bf16]) {
        assert_eq!(from.len(), into.len(), "elements to round");
        for (into, from) in into.iter_mut().zip(from) {
            let bits = from.to_bits();
            let (high, odd) = (bits >> 16, bits >> 16 & 1);
            let rounded = bits.wrapping_add(0x7FFF + odd) >> 16;
            *into = bf16::from_bits(if bits & 0x7FFF_FFFF > 0x7F80_0000 { high | 0x40 } else { rounded } as u16);
        }
    }
}

/// `from` in half precision, widened. Panics if the lengths differ, or `dtype` is not half precision.
pub(super) fn widen(dtype: DType, from: &[u8], into: &mut [f32]) {
    assert_eq!(from.len(), 2 * into.len(), "bytes of {} elements", into.len());
    let parts = from.par_chunks(2 * CHUNK).zip(into.par_chunks_mut(CHUNK));
    parallel::for_each(from.len(), parts, |(from, into)| match dtype {
        DType::F16 => f16::widen(bytemuck::cast_slice(from), into),
        DType::Bf16 => bf16::widen(bytemuck::cast_slice(from), into),
        other => panic!("{other:?} is not half precision"),
    });
}

/// `from` rounded to the nearest in half precision. Panics if the lengths differ, or `dtype` is not half precision.
pub(super) fn narrow(dtype: DType, from: &[f32], into: &mut [u8]) {
    assert_eq!(into.len(), 2 * from.len(), "bytes of {} elements", from.len());
    let parts = from.par_chunks(CHUNK).zip(into.par_chunks_mut(2 * CHUNK));
    parallel::for_each(2 * from.len(), parts, |(from, into)| match dtype {
        DType::F16 => f16::round(from, bytemuck::cast_slice_mut(into)),
        DType::Bf16 => bf16::round(from, bytemuck::cast_slice_mut(into)),
        other => panic!("{other:?} is not half precision"),
    });
}

/// Weights in another precision; unchanged if it is the same. Conversions between the two half precisions go through
/// single precision. Rounds as `Cast` does. Panics if either is not of floats.
pub fn converted(values: &[u8], from: DType, to: DType) -> Cow<'_, [u8]> {
    if from == to {
        return Cow::Borrowed(values);
    }
    // Value by value, since values in a file may be unaligned; with a single copy, since a tensor may be large.
    let mut into = Vec::with_capacity(values.len() / from.size_bytes() as usize * to.size_bytes() as usize);
    for value in values.chunks_exact(from.size_bytes() as usize) {
        let single = single(value, from);
        match to {
            DType::F32 => into.extend_from_slice(&single.to_le_bytes()),
            DType::F16 => into.extend_from_slice(&f16::from_f32(single).to_le_bytes()),
            DType::Bf16 => into.extend_from_slice(&rounded_weight(single).to_le_bytes()),
            other => panic!("{other:?} is not a float type"),
        }
    }
    Cow::Owned(into)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the machine's vectors and by the library, including the rest that fills no vector.
    fn check_rounding(values: &[f32]) {
        let mut rounded = vec![bf16::ZERO; values.len()];
        bf16::round(values, &mut rounded);
        for (value, rounded) in values.iter().zip(rounded) {
            let expected = bf16::from_f32(*value);
            assert_eq!(rounded.to_bits(), expected.to_bits(), "{value:e}, {:#x}", value.to_bits());
        }
    }

    #[test]
    fn every_bf16_is_widened_to_the_bits_of_the_library() {
        let all = (0..=u16::MAX).map(bf16::from_bits).collect::<Vec<_>>();
        for from in [&all[..], &all[65_535..], &all[0x7F70..0x7F8F]] {
            let mut widened = vec![0.0; from.len()];
            bf16::widen(from, &mut widened);
            for (from, widened) in from.iter().zip(widened) {
                assert_eq!(widened.to_bits(), from.to_f32().to_bits(), "{:#x}", from.to_bits());
            }
        }
    }

    #[test]
    fn floats_are_rounded_to_the_bits_of_the_library() {
        // Around each upper half: exact, just above, just below the tie, the tie, just above it, the last; this
        // includes all subnormal numbers, infinities and NaN.
        for low in [0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF] {
            let values = (0..=u32::from(u16::MAX)).map(|high| f32::from_bits(high << 16 | low)).collect::<Vec<_>>();
            check_rounding(&values);
        }
        // And random bits, from a linear congruential generator, in pieces that do not fill whole vectors.
        let mut state = 1u32;
        for length in 1..400 {
            let next = |_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                f32::from_bits(state)
            };
            check_rounding(&(0..length).map(next).collect::<Vec<_>>());
        }
    }
}
