//! The numbers that unfinished packings are known by.

use crate::columns::fingerprint;

/// The step by which SplitMix64 counts.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The first numbers of the generator for the seed 0. Source: Vigna's splitmix64.c, and what others publish of it.
#[test]
fn a_fingerprint_is_what_split_mix_64_makes_of_its_state() {
    let expected = [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f, 0xf88b_b8a8_724c_81ec];
    assert_eq!([0, 1, 2, 3].map(|count: u64| fingerprint(count.wrapping_mul(STEP))), expected);
}

/// Each bit of a number decides on each bit of its fingerprint half of the time: a weaker one would take packings that
/// differ in little for the same.
#[test]
fn a_bit_of_a_number_turns_half_of_the_bits_of_its_fingerprint() {
    for bit in 0..64 {
        let turned = (0..1_000).map(|number| (fingerprint(number) ^ fingerprint(number ^ 1 << bit)).count_ones());
        let mean = f64::from(turned.sum::<u32>()) / 1e3;
        assert!((mean - 32.0).abs() < 1.0, "bit {bit} turns {mean} bits");
    }
}
