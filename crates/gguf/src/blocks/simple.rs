//! Q8_0 and Q5_0: 32 integers that share a scale in half precision.

use super::inverse;
use half::f16;

/// The scale, then an integer for each number. The largest magnitude becomes 127. Integers are those of the unrounded scale,
/// as in ggml's reference.
pub(super) fn q8_0(numbers: &[f32], bytes: &mut [u8]) {
    let largest = numbers.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
    let scale = largest / 127.0;
    let (of_scale, integers) = bytes.split_at_mut(2);
    of_scale.copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    let inverse = inverse(scale);
    for (integer, number) in integers.iter_mut().zip(numbers) {
        *integer = ((number * inverse).round() as i8).cast_unsigned();
    }
}

/// The scale, the fifth bits of all integers, then the lower four bits of number i and of number i + 16 in a byte. The number
/// of the largest magnitude becomes 0, which stands for -16.
pub(super) fn q5_0(numbers: &[f32], bytes: &mut [u8]) {
    let largest = numbers.iter().fold(0.0_f32, |largest, &x| if x.abs() > largest.abs() { x } else { largest });
    let scale = largest / -16.0;
    let inverse = inverse(scale);
    let integer = |number: f32| ((number * inverse + 16.5) as u8).min(31);
    let (low, high) = numbers.split_at(numbers.len() / 2);
    let mut fifth = 0_u32;
    for (place, (&a, &b)) in low.iter().zip(high).enumerate() {
        let [a, b] = [integer(a), integer(b)];
        bytes[6 + place] = (a & 15) | (b << 4);
        fifth |= u32::from(a >> 4) << place | u32::from(b >> 4) << (place + 16);
    }
    bytes[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    bytes[2..6].copy_from_slice(&fifth.to_le_bytes());
}
