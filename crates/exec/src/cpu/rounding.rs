//! Stochastic rounding to `Bf16`.

use super::vectorize::vectorized;
use crate::philox::philox;

/// Random words, of which four are for eight elements.
#[derive(Clone, Copy)]
pub(super) struct Draws {
    /// The index of the first eight elements.
    pub(super) first: u32,
    /// What follows the index in the counter.
    pub(super) rest: [u32; 3],
    pub(super) key: [u32; 2],
}

/// How many times eight elements are rounded at a time, so that vectors hold as many counters.
const TOGETHER: usize = 32;

vectorized! {
    /// Rounds each value to one of the two nearest in `Bf16`, chosen at random so that the mean is exact. Panics if the lengths
    /// differ.
    pub(super) fn round_at_random<S: Simd>(simd: S, values: &[f32], into: &mut [u8], draws: &Draws) {
        assert_eq!(2 * values.len(), into.len(), "bytes of the rounded values");
        let Draws { first, rest: [a, b, c], key } = *draws;
        let into = into.as_chunks_mut::<2>().0;
        let parts = into.chunks_mut(8 * TOGETHER).zip(values.chunks(8 * TOGETHER));
        for ((into, values), part) in parts.zip(0..) {
            let mut words = [[0; TOGETHER]; 4];
            for eight in 0..TOGETHER {
                let index = first.wrapping_add((part * TOGETHER + eight) as u32);
                let of_eight = philox([index, a, b, c], key);
                for (words, word) in words.iter_mut().zip(of_eight) {
                    words[eight] = word;
                }
            }
            let mut halves = [0u16; 8 * TOGETHER];
            for (number, words) in words.iter().enumerate() {
                for (halves, word) in halves.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                    (halves[2 * number], halves[2 * number + 1]) = (*word as u16, (*word >> 16) as u16);
                }
            }
            for ((into, &value), half) in into.iter_mut().zip(values).zip(halves) {
                *into = rounded(value, half).to_le_bytes();
            }
        }
    }
}

/// The bits of one of the two nearest values.
#[inline(always)]
fn rounded(value: f32, random: u16) -> u16 {
    let bits = value.to_bits();
    let is_nan = bits & 0x7FFF_FFFF > 0x7F80_0000;
    let is_finite = bits & 0x7F80_0000 != 0x7F80_0000;
    let moved = if is_finite { bits.wrapping_add(u32::from(random)) } else { bits };
    (moved >> 16) as u16 | u16::from(is_nan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::half::bf16;

    #[test]
    fn rounding_at_random_is_exact_on_average() {
        for value in [1.0f32, 1.001, -3.1234567, 1e-30, 0.0, -2.5e-3, 7.77e20] {
            let total: f64 = (0..=u16::MAX).map(|r| bf16::from_bits(rounded(value, r)).to_f64()).sum();
            let mean = total / 65536.0;
            assert!((mean - f64::from(value)).abs() <= 1e-6 * f64::from(value.abs()), "{value}: {mean}");
        }
        assert!(bf16::from_bits(rounded(f32::NAN, 9)).is_nan());
        assert_eq!(rounded(f32::INFINITY, u16::MAX), bf16::INFINITY.to_bits());
    }
}
