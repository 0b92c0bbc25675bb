//! Half precision, bfloat16 and TF32: conversions, arithmetic, and the same for pairs. Arithmetic is in double
//! precision and rounds once, as on cards.

use super::super::types::Type;
use super::{Lanes, lanes};

/// Rounds to a format with `mantissa` stored bits and smallest normal exponent `lowest`, to nearest, ties to even. The
/// caller handles overflow. Exact for formats with less than half of double precision's bits.
pub fn round_to(x: f64, mantissa: i32, lowest: i32) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let exponent = ((x.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(lowest);
    // A power of two, so both products are exact.
    let step = power_of_two(exponent - mantissa);
    (x / step).round_ties_even() * step
}

/// 2 to the power of an exponent of a normal number.
pub fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// The bits of a half-precision number: 10 stored bits, the smallest normal number 2^-14.
pub fn f16_bits(x: f64) -> u16 {
    let sign = u16::from(x.is_sign_negative()) << 15;
    if x.is_nan() {
        return 0x7fff;
    }
    let rounded = round_to(x, 10, -14).abs();
    if rounded > 65504.0 {
        return sign | 0x7c00;
    }
    if rounded < power_of_two(-14) {
        return sign | (rounded / power_of_two(-24)) as u16;
    }
    let bits = rounded.to_bits();
    sign | ((bits >> 52) as u16 - (1023 - 15)) << 10 | (bits >> 42 & 0x3ff) as u16
}

/// The number in the bits of half precision.
pub fn f16_value(bits: u16) -> f32 {
    // In the fields of single precision, the same bits are a number that is smaller by the difference of both biases.
    const DIFFERENCE: f32 = f32::from_bits((127 + 127 - 15) << 23);
    let size = match bits & 0x7fff {
        0x7c00 => f32::INFINITY,
        0x7c01.. => f32::NAN,
        magnitude => f32::from_bits(u32::from(magnitude) << 13) * DIFFERENCE,
    };
    if bits >> 15 == 1 { -size } else { size }
}

/// The bits of a bfloat16 number: single precision with 7 stored bits.
pub fn bf16_bits(x: f64) -> u16 {
    if x.is_nan() {
        return 0x7fff;
    }
    // Rounded once: narrowing turns overflow into infinity, and is otherwise exact.
    ((round_to(x, 7, -126) as f32).to_bits() >> 16) as u16
}

/// The number in the bits of a bfloat16.
pub fn bf16_value(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Single precision rounded to 10 stored bits, halves away from zero, as `cvt.rna.tf32` does.
pub fn tf32_bits(x: f32) -> u32 {
    if x.is_finite() { (x.to_bits() + 0x1000) & !0x1fff } else { x.to_bits() }
}

/// A 16-bit format.
trait Half {
    fn value(bits: u64) -> f64;
    fn bits(x: f64) -> u64;
}

struct F16;
struct Bf16;

impl Half for F16 {
    fn value(bits: u64) -> f64 {
        f16_value(bits as u16).into()
    }
    fn bits(x: f64) -> u64 {
        f16_bits(x).into()
    }
}

impl Half for Bf16 {
    fn value(bits: u64) -> f64 {
        bf16_value(bits as u16).into()
    }
    fn bits(x: f64) -> u64 {
        bf16_bits(x).into()
    }
}

/// The function of an opcode for a type.
pub fn lanes_of(opcode: &str, variant: &str, ty: Type) -> Option<Lanes> {
    match ty {
        Type::F16 => single::<F16>(opcode, variant),
        Type::Bf16 => single::<Bf16>(opcode, variant),
        Type::F16x2 => pair::<F16>(opcode, variant),
        Type::Bf16x2 => pair::<Bf16>(opcode, variant),
        _ => None,
    }
}

fn single<H: Half>(opcode: &str, variant: &str) -> Option<Lanes> {
    Some(match (opcode, variant) {
        ("mov", "") => lanes!(|a, _, _, _| a & 0xffff),
        ("add", "") => lanes!(|a, b, _, _| H::bits(H::value(a) + H::value(b))),
        ("sub", "") => lanes!(|a, b, _, _| H::bits(H::value(a) - H::value(b))),
        ("mul", "") => lanes!(|a, b, _, _| H::bits(H::value(a) * H::value(b))),
        ("fma", "") => lanes!(|a, b, c, _| fused::<H>(a, b, c)),
        ("min", "") => lanes!(|a, b, _, _| H::bits(H::value(a).min(H::value(b)))),
        ("max", "") => lanes!(|a, b, _, _| H::bits(H::value(a).max(H::value(b)))),
        ("neg", "") => lanes!(|a, _, _, _| (a ^ 0x8000) & 0xffff),
        ("abs", "") => lanes!(|a, _, _, _| a & 0x7fff),
        ("ex2", _) => lanes!(|a, _, _, _| H::bits(H::value(a).exp2())),
        ("tanh", _) => lanes!(|a, _, _, _| H::bits(H::value(a).tanh())),
        ("setp", "eq") => lanes!(|a, b, _, _| (H::value(a) == H::value(b)).into()),
        ("setp", "neu") => lanes!(|a, b, _, _| (H::value(a) != H::value(b)).into()),
        ("setp", "lt") => lanes!(|a, b, _, _| (H::value(a) < H::value(b)).into()),
        ("setp", "le") => lanes!(|a, b, _, _| (H::value(a) <= H::value(b)).into()),
        ("setp", "gt") => lanes!(|a, b, _, _| (H::value(a) > H::value(b)).into()),
        ("setp", "ge") => lanes!(|a, b, _, _| (H::value(a) >= H::value(b)).into()),
        ("setp", "nan") => lanes!(|a, b, _, _| (H::value(a).is_nan() || H::value(b).is_nan()).into()),
        _ => return None,
    })
}

fn pair<H: Half>(opcode: &str, variant: &str) -> Option<Lanes> {
    Some(match (opcode, variant) {
        ("mov", "") => lanes!(|a, _, _, _| a & 0xffff_ffff),
        ("add", "") => lanes!(|a, b, _, _| both(a, b, 0, |a, b, _| H::bits(H::value(a) + H::value(b)))),
        ("sub", "") => lanes!(|a, b, _, _| both(a, b, 0, |a, b, _| H::bits(H::value(a) - H::value(b)))),
        ("mul", "") => lanes!(|a, b, _, _| both(a, b, 0, |a, b, _| H::bits(H::value(a) * H::value(b)))),
        ("fma", "") => lanes!(|a, b, c, _| both(a, b, c, fused::<H>)),
        ("min", "") => lanes!(|a, b, _, _| both(a, b, 0, |a, b, _| H::bits(H::value(a).min(H::value(b))))),
        ("max", "") => lanes!(|a, b, _, _| both(a, b, 0, |a, b, _| H::bits(H::value(a).max(H::value(b))))),
        ("neg", "") => lanes!(|a, _, _, _| (a ^ 0x8000_8000) & 0xffff_ffff),
        ("abs", "") => lanes!(|a, _, _, _| a & 0x7fff_7fff),
        ("ex2", _) => lanes!(|a, _, _, _| both(a, 0, 0, |a, _, _| H::bits(H::value(a).exp2()))),
        ("tanh", _) => lanes!(|a, _, _, _| both(a, 0, 0, |a, _, _| H::bits(H::value(a).tanh()))),
        _ => return None,
    })
}

/// a · b + c. The product is exact in double precision. The sum may round twice, which changes fewer than one in 2^29
/// ties.
fn fused<H: Half>(a: u64, b: u64, c: u64) -> u64 {
    H::bits(H::value(a).mul_add(H::value(b), H::value(c)))
}

/// Applies a function to the lower and the upper half.
fn both(a: u64, b: u64, c: u64, f: impl Fn(u64, u64, u64) -> u64) -> u64 {
    let low = |x: u64| x & 0xffff;
    let high = |x: u64| x >> 16 & 0xffff;
    f(low(a), low(b), low(c)) | f(high(a), high(b), high(c)) << 16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every half-precision number and every bfloat16 survives the conversion to single precision and back.
    #[test]
    fn conversions_are_each_others_inverse() {
        for bits in 0..=u16::MAX {
            let (half, brain) = (f16_value(bits), bf16_value(bits));
            assert_eq!([half.is_nan(), brain.is_nan()], [bits & 0x7fff > 0x7c00, bits & 0x7fff > 0x7f80], "{bits:#x}");
            assert!(half.is_nan() || f16_bits(half.into()) == bits, "{bits:#x}");
            assert!(brain.is_nan() || bf16_bits(brain.into()) == bits, "{bits:#x}");
        }
    }

    #[test]
    fn rounding_is_to_nearest_and_ties_go_to_even() {
        let f16 = [(1.0 + 2f64.powi(-11), 0x3c00), (1.0 + 3.0 * 2f64.powi(-11), 0x3c02), (65519.9, 0x7bff)];
        for (x, bits) in f16.into_iter().chain([(65520.0, 0x7c00), (2f64.powi(-25), 0), (-1e-7, 0x8002)]) {
            assert_eq!(f16_bits(x), bits, "{x}");
        }
        for (x, bits) in [(1.0 + 2f64.powi(-8), 0x3f80), (1.0 + 3.0 * 2f64.powi(-8), 0x3f82), (3.4e38, 0x7f80)] {
            assert_eq!(bf16_bits(x), bits, "{x}");
        }
    }
}
