//! Reference of weights that have a remainder (`WeightFormat::Bf16AndRemainder`): by what numbers are worth, not by their bits.

/// How far apart the numbers of single precision are around this one, which is finite.
fn unit(value: f64) -> f64 {
    let exponent = value.abs().log2().floor().clamp(-126.0, 127.0);
    (exponent - 23.0).exp2()
}

/// The number that lies so many units of single precision away from a weight, farther from zero if it is above zero. Where
/// these units are halved below a power of two, the remainder counts the halves.
pub(crate) fn whole(weight: f64, remainder: f64) -> f64 {
    let below = weight.abs().log2().fract() == 0.0 && remainder < 0.0 && weight.abs() > f64::from(f32::MIN_POSITIVE);
    let unit = if below { unit(weight) / 2.0 } else { unit(weight) };
    let magnitude = weight.abs() + remainder * unit;
    if weight.is_sign_negative() { -magnitude } else { magnitude }
}

/// A number, rounded to single precision, as the nearest weight in `Bf16`, of two the one farther from zero, and the units
/// of single precision from there on.
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
    fn a_number_is_its_nearest_weight_and_what_that_lacks() {
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
