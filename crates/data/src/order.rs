//! The order of training samples: a different permutation for each epoch. It is computed, not stored, so a run resumes
//! from its position alone.
//!
//! A balanced Feistel network permutes `[0, 4^k)`, the smallest such range that holds all samples; a value outside `[0,
//! len)` is fed back until it is inside ("cycle walking"), fewer than four times on average.
//! Source: Black & Rogaway 2002, "Ciphers with Arbitrary Finite Domains", methods 2 and 3.

const ROUNDS: u64 = 8;

/// A permutation of `[0, len)` for each epoch. Depends on the seed and the length alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    seed: u64,
    len: u64,
    half_bits: u32,
}

impl Order {
    /// The order of `len` samples. Panics if there are none.
    pub fn new(seed: u64, len: u64) -> Self {
        assert!(len > 0, "an order needs samples");
        let bits = u64::BITS - (len - 1).leading_zeros();
        Self { seed, len, half_bits: bits.div_ceil(2).max(1) }
    }

    /// Samples of an epoch.
    pub fn samples_per_epoch(&self) -> u64 {
        self.len
    }

    /// The sample at a position, counted over all epochs: `position / len` is the epoch.
    pub fn at(&self, position: u64) -> u64 {
        let key = mix(self.seed ^ mix(position / self.len));
        let mut sample = self.permute(key, position % self.len);
        while sample >= self.len {
            sample = self.permute(key, sample);
        }
        sample
    }

    /// One pass through the network: (left, right) → (right, left ⊕ f(right)), with a different key in each round.
    fn permute(&self, key: u64, value: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for round in 0..ROUNDS {
            let bits = mix(key.wrapping_add(round.wrapping_mul(GOLDEN)) ^ mix(right));
            (left, right) = (right, (left ^ bits) & mask);
        }
        left << self.half_bits | right
    }
}

/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// A bijection on 64 bits that spreads each bit over all others. Source: SplitMix64, Steele, Lea & Flood 2014.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(GOLDEN);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn epoch(order: &Order, epoch: u64) -> Vec<u64> {
        (epoch * order.len..(epoch + 1) * order.len).map(|position| order.at(position)).collect()
    }

    #[test]
    fn the_order_is_the_same_forever() {
        // Resumed runs rely on it. The numbers come from an independent implementation in Python.
        assert_eq!(epoch(&Order::new(42, 10), 0), [2, 4, 6, 5, 1, 9, 8, 7, 0, 3]);
        assert_eq!(Order::new(42, 1_000_000_007).at(12_345_678_901), 56_786_092);
    }

    #[test]
    fn epochs_and_seeds_differ() {
        let order = Order::new(1, 1000);
        assert_ne!(epoch(&order, 0), epoch(&order, 1));
        assert_ne!(epoch(&order, 0), epoch(&Order::new(2, 1000), 0));
        let shared = (0..1000).filter(|&p| order.at(p) == order.at(p + 1000)).count();
        assert!(shared < 10, "{shared} samples at the same place in two epochs");
    }

    #[test]
    fn samples_are_spread_evenly() {
        // Each of 7 samples at each of 7 positions over 7000 epochs: 1000 times each, standard deviation 29.
        let order = Order::new(3, 7);
        let mut counts = [[0u32; 7]; 7];
        for position in 0..7 * 7000 {
            counts[(position % 7) as usize][order.at(position) as usize] += 1;
        }
        assert!(counts.as_flattened().iter().all(|count| (850..1150).contains(count)), "{counts:?}");

        // In random order, neighbors are a third of the length apart on average.
        let order = Order::new(4, 100_000);
        let distance: u64 = (0..100_000).map(|p| order.at(p).abs_diff(order.at(p + 1))).sum::<u64>() / 100_000;
        assert!((32_500..34_200).contains(&distance), "{distance}");
    }

    #[test]
    fn huge_lengths_stay_inside() {
        for len in [u64::MAX, 1 << 63, (1 << 32) + 1] {
            let order = Order::new(5, len);
            assert!((0..100).all(|position| order.at(position) < len));
        }
    }

    proptest! {
        #[test]
        fn each_epoch_is_a_bijection(seed: u64, len in 1u64..5000, e in 0u64..1 << 40) {
            let mut samples = epoch(&Order::new(seed, len), e);
            samples.sort_unstable();
            prop_assert!(samples.into_iter().eq(0..len));
        }
    }
}
