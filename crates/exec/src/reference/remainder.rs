//! Reference of weights with a remainder (`WeightFormat::Bf16AndRemainder`), computed from values, not from bits.

/// The distance of neighboring numbers of single precision at this finite value.
fn unit(value: f64) -> f64 {
    let exponent = value.abs().log2().floor().clamp(-126.0, 127.0);
    (exponent - 23.0).exp2()
}

/// The number `remainder` units of single precision away from a weight, away from zero if `remainder` is positive.
/// Below a power of two, where units are halved, the remainder counts the smaller units.
pub(crate) fn whole(weight: f64, remainder: f64) -> f64 {
    let below = weight.abs().log2().fract() == 0.0 && remainder < 0.0 && weight.abs() > f64::from(f32::MIN_POSITIVE);
    let unit = if below { unit(weight) / 2.0 } else { unit(weight) };
    let magnitude = weight.abs() + remainder * unit;
    if weight.is_sign_negative() { -magnitude } else { magnitude }
}

/// A number, rounded to single precision, as the nearest weight in `Bf16`, with ties away from zero, and the remainder
/// in units of single precision.
pub(super) fn nearest(value: f64) -> [f64; 2] {
    let value = f64::from(value as f32);
    if !value.is_finite() {
        return [value, 0.0];
    }
    let unit = unit(value);
    let coarse = 65536.0 * unit;
    let weight = (value.abs() / coarse + 0.5).floor() * coarse;
    let remainder = (value.abs() - weight) / unit;
    [if value.is_sign_negative() { -weight } else { weight }, remainder]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_its_nearest_weight_and_its_remainder() {
        for value in [1.0f32, 1.003, -1.003, 1.9999, -3.999_999, 0.0, -0.0, 1e-39, -7.7e-42, 0.499_999, 3e38, 65_537.0]
        {
            let value = f64::from(value);
            let [weight, remainder] = nearest(value);
            assert_eq!(half::bf16::from_f64(weight).to_f64(), weight, "{value:e}");
            assert!((-32_768.0..=32_767.0).contains(&remainder) && remainder.fract() == 0.0, "{value:e}: {remainder}");
            assert_eq!(whole(weight, remainder), value, "{value:e}");
        }
    }
}
