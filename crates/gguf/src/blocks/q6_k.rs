//! Q6_K: 256 numbers in 16 groups of 16. A group has a scale of 8 bits, a multiple of the block's.
//!
//! ```text
//!   bytes   0..128 lower four bits   128..192 upper two bits   192..208 scales s   208..210 d
//!   number  d · s · (q - 32)
//! ```

use super::{SUPER_BLOCK, inverse};
use half::f16;

const GROUP: usize = 16;
const GROUPS: usize = SUPER_BLOCK / GROUP;
/// Integers that the number of the largest magnitude of a group is tried as.
const TRIED: [f32; 9] = [-32.0, -31.5, -31.0, -30.5, -30.0, -29.0, -28.0, -32.5, -33.0];

/// An integer from -32 to 31, rounded to the nearest by cutting off what is below the half of a positive number. `inverse`: of
/// the scale, or 0.
fn integer(number: f32, inverse: f32) -> f32 {
    (((number * inverse).clamp(-32.0, 31.0) + 32.5) as i32 - 32) as f32
}

/// The scale of the least squared error that is found. Larger numbers weigh more.
fn fit(numbers: &[f32]) -> f32 {
    let largest = numbers.iter().fold(0.0_f32, |largest, &x| if x.abs() > largest.abs() { x } else { largest });
    if largest == 0.0 {
        return 0.0;
    }
    let mut best = (f32::INFINITY, largest / TRIED[0]);
    for as_integer in TRIED {
        let first = largest / as_integer;
        // The scale of least squares for these integers.
        let sums = numbers.iter().fold([0.0_f32; 2], |[qx, qq], &x| {
            let (q, weight) = (integer(x, inverse(first)), x * x);
            [qx + weight * q * x, qq + weight * q * q]
        });
        let refit = if sums[1] > 0.0 { sums[0] / sums[1] } else { first };
        for scale in [first, refit] {
            let inverse = inverse(scale);
            let error = numbers.iter().map(|&x| x * x * (scale * integer(x, inverse) - x).powi(2)).sum::<f32>();
            if error < best.0 {
                best = (error, scale);
            }
        }
    }
    best.1
}

pub(super) fn q6_k(numbers: &[f32], bytes: &mut [u8]) {
    let mut scales = [0.0; GROUPS];
    scales.iter_mut().zip(numbers.chunks_exact(GROUP)).for_each(|(scale, group)| *scale = fit(group));
    let largest = scales.iter().fold(0.0_f32, |largest, &x| if x.abs() > largest.abs() { x } else { largest });
    let unit = f16::from_f32(largest / -128.0);
    let code = |scale: f32| match unit.to_f32() {
        0.0 => 0,
        unit => (scale / unit).round().clamp(-128.0, 127.0) as i8,
    };
    let codes = scales.map(code);
    bytes.fill(0);
    for (place, &number) in numbers.iter().enumerate() {
        let group = place / GROUP;
        let scale = unit.to_f32() * f32::from(codes[group]);
        put(bytes, place, (integer(number, inverse(scale)) + 32.0) as u8);
    }
    bytes[192..208].iter_mut().zip(codes).for_each(|(byte, code)| *byte = code.cast_unsigned());
    bytes[208..].copy_from_slice(&unit.to_le_bytes());
}

/// Of each half of the block, numbers 0 to 64 have their lower bits in the lower halves of 64 bytes and the others in the
/// upper halves; the upper bits of numbers i, i + 32, i + 64 and i + 96 share a byte.
fn put(bytes: &mut [u8], place: usize, integer: u8) {
    let (half, within) = (place / 128, place % 128);
    bytes[half * 64 + within % 64] |= (integer & 15) << (within / 64 * 4);
    bytes[128 + half * 32 + within % 32] |= (integer >> 4) << (within / 32 * 2);
}
