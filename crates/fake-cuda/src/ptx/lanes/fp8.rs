//! The 8-bit floats e4m3 and e5m2: conversions.
//! Source: Micikevicius et al. 2022, "FP8 formats for deep learning".

use super::half::{f16_value, power_of_two, round_to};

/// The bits for NaN in both formats.
const NAN: u8 = 0x7f;

/// The bits of a number in e4m3: 3 stored bits, the smallest normal number 2^-6, no infinity. Rounds to nearest, ties to
/// even; larger numbers than 448 become 448, as by `cvt.rn.satfinite`.
pub fn e4m3_bits(x: f64) -> u8 {
    bits(x, 3, -6, 448.0)
}

/// The bits of a number in e5m2: 2 stored bits, the smallest normal number 2^-14. Rounds to nearest, ties to even; larger
/// numbers than 57344 become 57344, as by `cvt.rn.satfinite`.
pub fn e5m2_bits(x: f64) -> u8 {
    bits(x, 2, -14, 57344.0)
}

/// The number in the bits of e4m3.
pub fn e4m3_value(bits: u8) -> f32 {
    // In the fields of single precision, the same bits are a number that is smaller by the difference of both biases.
    const DIFFERENCE: f32 = f32::from_bits((127 + 127 - 7) << 23);
    let size = match bits & 0x7f {
        NAN => f32::NAN,
        magnitude => f32::from_bits(u32::from(magnitude) << 20) * DIFFERENCE,
    };
    if bits >> 7 == 1 { -size } else { size }
}

/// The number in the bits of e5m2, which are the upper half of half precision.
pub fn e5m2_value(bits: u8) -> f32 {
    f16_value(u16::from(bits) << 8)
}

/// The bits of a number in a format with `mantissa` stored bits, smallest normal exponent `lowest` and largest number
/// `largest`.
fn bits(x: f64, mantissa: i32, lowest: i32, largest: f64) -> u8 {
    if x.is_nan() {
        return NAN;
    }
    let sign = u8::from(x.is_sign_negative()) << 7;
    let rounded = round_to(x, mantissa, lowest).abs().min(largest);
    if rounded < power_of_two(lowest) {
        return sign | (rounded / power_of_two(lowest - mantissa)) as u8;
    }
    // Exponent and stored bits, less the difference of both biases.
    let fields = (rounded.to_bits() >> (52 - mantissa)) as i32;
    sign | (fields - ((1022 + lowest) << mantissa)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A format: its conversions, stored bits, bias, and number of finite codes of a sign.
    struct Format {
        bits: fn(f64) -> u8,
        value: fn(u8) -> f32,
        mantissa: u32,
        bias: i32,
        finite: u8,
    }

    const FORMATS: [Format; 2] = [
        Format { bits: e4m3_bits, value: e4m3_value, mantissa: 3, bias: 7, finite: 0x7f },
        Format { bits: e5m2_bits, value: e5m2_value, mantissa: 2, bias: 15, finite: 0x7c },
    ];

    impl Format {
        /// The number in a finite code, by its definition: an exponent and a fraction.
        fn plain(&self, code: u8) -> f64 {
            let (exponent, fraction) = (code >> self.mantissa, code & ((1 << self.mantissa) - 1));
            let fraction = f64::from(fraction) / f64::from(1u32 << self.mantissa);
            match exponent {
                0 => fraction * 2f64.powi(1 - self.bias),
                _ => (1.0 + fraction) * 2f64.powi(i32::from(exponent) - self.bias),
            }
        }
    }

    #[test]
    fn every_code_has_its_number_and_the_number_its_code() {
        for format in FORMATS {
            for code in 0..format.finite {
                for (sign, code) in [(1.0, code), (-1.0, code | 0x80)] {
                    let number = f64::from((format.value)(code));
                    let expected = sign * format.plain(code & 0x7f);
                    assert_eq!(number.to_bits(), expected.to_bits(), "{code:#x}: {number}, not {expected}");
                    assert_eq!((format.bits)(number), code, "{number}");
                }
            }
        }
        let ends = [e4m3_value(0x01), e4m3_value(0x7e), e5m2_value(0x01), e5m2_value(0x7b)];
        assert_eq!(ends, [2f32.powi(-9), 448.0, 2f32.powi(-16), 57344.0]);
        assert!([0x7f, 0xff].into_iter().all(|code| e4m3_value(code).is_nan()));
        assert!([0x7d, 0x7e, 0x7f, 0xfd, 0xfe, 0xff].into_iter().all(|code| e5m2_value(code).is_nan()));
        assert_eq!([0x7c, 0xfc].map(e5m2_value), [f32::INFINITY, f32::NEG_INFINITY]);
    }

    /// Between all neighbors: half way is the even code, anything less or more the nearer one.
    #[test]
    fn rounding_is_to_nearest_and_ties_go_to_even() {
        for format in FORMATS {
            for code in 0..format.finite - 1 {
                // Exact in single precision, whose neighbors are the closest operands of `cvt`.
                let middle = (format.plain(code) + format.plain(code + 1)) / 2.0;
                let (below, above) = ((middle as f32).next_down(), (middle as f32).next_up());
                let even = code + code % 2;
                for (x, expected) in [(middle, even), (below.into(), code), (above.into(), code + 1)] {
                    assert_eq!((format.bits)(x), expected, "{x}");
                    assert_eq!((format.bits)(-x), expected | 0x80, "-{x}");
                }
            }
        }
    }

    #[test]
    fn numbers_out_of_range_are_the_largest_or_zero() {
        for format in FORMATS {
            let last = format.finite - 1;
            let largest = format.plain(last) as f32;
            for x in [largest.next_up(), 1.1 * largest, 2.0 * largest, f32::MAX, f32::INFINITY] {
                assert_eq!([x, -x].map(|x| (format.bits)(x.into())), [last, last | 0x80], "{x}");
            }
            for x in [0.0, f32::from_bits(1), f32::MIN_POSITIVE, (format.plain(1) as f32 / 2.0).next_down()] {
                assert_eq!([x, -x].map(|x| (format.bits)(x.into())), [0, 0x80], "{x}");
            }
            for x in [f64::NAN, -f64::NAN] {
                assert_eq!((format.bits)(x), 0x7f);
            }
        }
    }
}
