//! Numbers that are a function of a counter, so that any part of an operand or a pattern can be computed again.

/// A well-mixed number of a counter. Source: the output function of SplitMix64, Steele et al. 2014, "Fast splittable
/// pseudorandom number generators", figure 1.
pub(crate) fn mix(counter: u64) -> u64 {
    let z = counter.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The sign bit of a single-precision number.
pub(crate) const SIGN: u32 = 1 << 31;

/// The lowest two bits of the exponent of a single-precision number.
const EXPONENT: [u32; 2] = [1 << 24, 1 << 23];

/// The word of a pass at an address, counted in words. It is a function of the address, every second pass has the complement
/// of the pass before, and every third pass moves the pattern. As a single-precision number it is normal, so that a change of
/// its sign changes no other bit: two bits of the exponent differ, and their complements do too.
pub(crate) fn pattern(address: u64, pass: u64) -> u32 {
    let word = mix(address.wrapping_add((pass / 2) << 40)) as u32;
    let [high, low] = EXPONENT;
    let word = if word & high == 0 { word | low } else { word & !low };
    if pass.is_multiple_of(2) { word } else { !word }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_normal_numbers_that_depend_on_address_and_pass() {
        for address in 0..4096 {
            let words = [0, 1, 2, 3].map(|pass| pattern(address, pass));
            assert_eq!((words[0], words[2]), (!words[1], !words[3]), "complements");
            assert_ne!(words[0], words[2], "the pattern moves");
            assert_ne!(words[0], pattern(address + 1, 0), "the pattern depends on the address");
            for word in words {
                let number = f32::from_bits(word);
                assert!(number.is_normal(), "{word:#x}");
                assert_eq!((-number).to_bits(), word ^ SIGN);
            }
        }
    }
}
