//! Philox4x32-10: random bits as a function of a counter and a key, without state. Source: Salmon, Moraes, Dror & Shaw
//! 2011, "Parallel random numbers: as easy as 1, 2, 3", section 4.
//!
//! Dropout is keyed by seed, step, global sample, site and element. So another micro-batch, recomputation or a resumed run
//! draws the same bits, and no mask is stored. Attention numbers its probabilities by query and key, not by padded lengths.

use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

const ROUND_MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_INCREMENTS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Four random words for a counter and a key. The words are in 64 bits whose upper halves may contain anything:
/// products mask them, which costs vector code nothing, while narrowing after each round would cost more than the
/// multiplications.
#[inline(always)]
pub fn philox(counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let mut counter = counter.map(u64::from);
    for _ in 0..10 {
        let low = u64::from(counter[0] as u32) * u64::from(ROUND_MULTIPLIERS[0]);
        let high = u64::from(counter[2] as u32) * u64::from(ROUND_MULTIPLIERS[1]);
        counter =
            [(high >> 32) ^ counter[1] ^ u64::from(key[0]), high, (low >> 32) ^ counter[3] ^ u64::from(key[1]), low];
        key = [key[0].wrapping_add(KEY_INCREMENTS[0]), key[1].wrapping_add(KEY_INCREMENTS[1])];
    }
    counter.map(|word| word as u32)
}

/// What random words are for; no two purposes share draws.
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Purpose {
    /// Masks of dropout: the words are for four elements of a sample.
    Dropout = 0xD80F,
    /// Rounding of the gradient of a micro-batch, which is numbered by its first sample: the words are for eight elements.
    Gradient = 0x6AD5,
}

/// The key of random words of a step, so that no two steps have the same draws.
#[inline(always)]
pub fn step_key(purpose: Purpose, seed: u64, step: u64) -> [u32; 2] {
    [seed as u32 ^ (step as u32).rotate_left(16), (seed >> 32) as u32 ^ step as u32 ^ purpose as u32]
}

/// What follows the index of random words in the counter of a site for a sample.
#[inline(always)]
pub fn site_counter(site: u32, sample: u64) -> [u32; 3] {
    [site, sample as u32, (sample >> 32) as u32]
}

/// The random words for elements `4·quad .. 4·quad+4` of a sample at a dropout site.
#[inline(always)]
pub fn dropout_bits(seed: u64, step: u64, sample: u64, site: u32, quad: u32) -> [u32; 4] {
    let [site, low, high] = site_counter(site, sample);
    philox([quad, site, low, high], step_key(Purpose::Dropout, seed, step))
}

/// An element is kept if its random word is at least this: a fraction `rate` of all words is below.
pub fn dropout_threshold(rate: f32) -> u32 {
    (f64::from(rate) * 4_294_967_296.0) as u32
}

/// Normally distributed numbers with mean 0 and deviation 1, as a function of a key and an index, two at a time.
/// Source: Box & Muller 1958.
pub fn normal_pair(key: [u32; 2], stream: u32, index: u64) -> [f32; 2] {
    let bits = philox([index as u32, (index >> 32) as u32, stream, 0x6A55], key);
    let unit = |high: u32, low: u32| {
        let word = (u64::from(high) << 21) ^ (u64::from(low) >> 11);
        (word as f64 + 0.5) / (1u64 << 53) as f64
    };
    let (radius, angle) = ((-2.0 * unit(bits[0], bits[1]).ln()).sqrt(), std::f64::consts::TAU * unit(bits[2], bits[3]));
    [(radius * angle.cos()) as f32, (radius * angle.sin()) as f32]
}

/// Fills `values` with draws of this standard deviation on all threads: [`normal_pair`]s from the `first` pair on.
pub fn fill_normal(values: &mut [f32], deviation: f32, key: [u32; 2], stream: u32, first: u64) {
    /// Values that a thread draws at a time, in pairs.
    const AT_A_TIME: usize = 1 << 12;
    values.par_chunks_mut(AT_A_TIME).enumerate().for_each(|(number, chunk)| {
        let pairs = (first + (number * AT_A_TIME / 2) as u64..).flat_map(|index| normal_pair(key, stream, index));
        chunk.iter_mut().zip(pairs).for_each(|(value, drawn)| *value = drawn * deviation);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_do_not_depend_on_the_thread() {
        let mut values = vec![0.0; 9_999];
        fill_normal(&mut values, 0.5, [1, 2], 3, 7);
        let expected = (7..).flat_map(|index| normal_pair([1, 2], 3, index)).map(|drawn| 0.5 * drawn);
        assert!(values.into_iter().eq(expected.take(9_999)));
    }

    /// Known answers published with the authors' Random123 library (kat_vectors, philox4x32 10).
    #[test]
    fn philox_gives_the_published_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn normals_have_mean_zero_and_deviation_one() {
        let samples = (0..50_000).flat_map(|i| normal_pair([1, 2], 3, i)).map(f64::from).collect::<Vec<_>>();
        let mean = samples.iter().sum::<f64>() / samples.len() as f64;
        let variance = samples.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / samples.len() as f64;
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }
}
