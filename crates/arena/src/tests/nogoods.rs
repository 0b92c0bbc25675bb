//! The fingerprints of partial packings.

use crate::columns::fingerprint;

/// The increment of SplitMix64's state.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The generator's first numbers for the seed 0. Source: Vigna's splitmix64.c; published test vectors agree.
#[test]
fn a_fingerprint_is_the_output_of_split_mix_64() {
    let expected = [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f, 0xf88b_b8a8_724c_81ec];
    assert_eq!([0, 1, 2, 3].map(|count: u64| fingerprint(count.wrapping_mul(STEP))), expected);
}

/// Each bit of the number flips each bit of the fingerprint with probability 1/2. With a weaker hash, the set would
/// confuse similar packings.
#[test]
fn a_bit_of_a_number_flips_half_of_the_bits_of_its_fingerprint() {
    for bit in 0..64 {
        let turned = (0..1_000).map(|number| (fingerprint(number) ^ fingerprint(number ^ 1 << bit)).count_ones());
        let mean = f64::from(turned.sum::<u32>()) / 1e3;
        assert!((mean - 32.0).abs() < 1.0, "bit {bit} flips {mean} bits");
    }
}
