//! Conversions between numbers and text with Python's semantics.

use crate::Value;
use crate::error::{Error, Result};
use crate::unicode::is_space;

/// The error for an integer that Python has and [`Value`] has not.
pub(crate) fn too_large() -> Error {
    Error::unsupported("an integer beyond 127 bits")
}

/// `repr` of a floating-point number.
pub(crate) fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    } else if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').expect("an exponent");
    let exponent: i32 = exponent.parse().expect("a number");
    if (-4..16).contains(&exponent) {
        let text = number.to_string();
        return if text.contains('.') { text } else { text + ".0" };
    }
    with_exponent(mantissa, exponent)
}

fn with_exponent(mantissa: &str, exponent: i32) -> String {
    format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// The absolute value of a number in the printf form `e`, `f` or `g`. `keeps_zeros`: whether `g` keeps trailing zeros.
pub(crate) fn float_in_form(number: f64, form: char, precision: usize, keeps_zeros: bool) -> String {
    let number = number.abs();
    if !number.is_finite() {
        return if number.is_nan() { "nan" } else { "inf" }.to_owned();
    }
    let scientific = |precision: usize| {
        let text = format!("{number:.precision$e}");
        let (mantissa, exponent) = text.split_once('e').expect("an exponent");
        (mantissa.to_owned(), exponent.parse::<i32>().expect("a number"))
    };
    match form {
        'e' => {
            let (mantissa, exponent) = scientific(precision);
            with_exponent(&mantissa, exponent)
        }
        'f' => format!("{number:.precision$}"),
        _ => {
            let precision = precision.max(1);
            let (mantissa, exponent) = scientific(precision - 1);
            let without_zeros = |text: String| {
                if keeps_zeros || !text.contains('.') {
                    return text;
                }
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            };
            if (-4..precision as i32).contains(&exponent) {
                let decimals = (precision as i32 - 1 - exponent) as usize;
                without_zeros(format!("{number:.decimals$}"))
            } else {
                with_exponent(&without_zeros(mantissa), exponent)
            }
        }
    }
}

/// Python's `float` of a text; `None` if it is not a number.
pub(crate) fn float_of(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_space);
    let (is_negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let number = match unsigned.to_ascii_lowercase().as_str() {
        "inf" | "infinity" => f64::INFINITY,
        "nan" => f64::NAN,
        _ => {
            let is_digit =
                |at: Option<usize>| at.and_then(|at| unsigned.as_bytes().get(at)).is_some_and(u8::is_ascii_digit);
            let between_digits = |(at, _): (usize, &str)| is_digit(at.checked_sub(1)) && is_digit(Some(at + 1));
            let is_plain = unsigned.bytes().all(|byte| byte.is_ascii_digit() || b"._eE+-".contains(&byte));
            if !is_plain || !unsigned.match_indices('_').all(between_digits) || unsigned.starts_with(['+', '-']) {
                return None;
            }
            unsigned.replace('_', "").parse().ok()?
        }
    };
    Some(if is_negative { -number } else { number })
}

/// Python's `int` of a text; `None` if it is not an integer. Errors: the base is invalid, or the number is too large.
pub(crate) fn int_of(text: &str, base: i128) -> Result<Option<i128>> {
    if base != 0 && !(2..=36).contains(&base) {
        return Ok(None);
    }
    let text = text.trim_matches(is_space);
    let (is_negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = unsigned.to_ascii_lowercase();
    let prefixes = [("0b", 2), ("0o", 8), ("0x", 16)];
    let prefixed = prefixes.into_iter().find(|(prefix, of)| lower.starts_with(prefix) && (base == 0 || base == *of));
    let (digits, radix, is_prefixed) = match prefixed {
        Some((_, radix)) => (&lower[2..], radix as u32, true),
        None => (lower.as_str(), if base == 0 { 10 } else { base as u32 }, false),
    };
    let digits = if is_prefixed { digits.strip_prefix('_').unwrap_or(digits) } else { digits };
    if !digits.is_ascii() && digits.chars().all(|c| c.is_numeric() || c == '_') {
        return Err(Error::unsupported("an integer in digits beyond ASCII"));
    }
    let parts_are_digits = digits.split('_').all(|part| !part.is_empty() && part.chars().all(|c| c.is_digit(radix)));
    // In base 0, only zero itself may start with 0.
    let begins_with_zero =
        base == 0 && !is_prefixed && digits.starts_with('0') && !digits.trim_matches(['0', '_']).is_empty();
    if !parts_are_digits || begins_with_zero {
        return Ok(None);
    }
    let number = i128::from_str_radix(&digits.replace('_', ""), radix).map_err(|_| too_large())?;
    Ok(Some(if is_negative { -number } else { number }))
}

/// Python's `int` of a floating-point number; `None` for NaN. Errors: it is infinite or too large.
pub(crate) fn int_of_float(number: f64) -> Result<Option<i128>> {
    if number.is_nan() {
        return Ok(None);
    } else if number.is_infinite() {
        return Err(Error::raised("infinity is not an integer"));
    } else if number.abs() >= 1e38 {
        return Err(too_large());
    }
    Ok(Some(number.trunc() as i128))
}

/// Python's `round`.
pub(crate) fn rounded(value: &Value, digits: i128) -> Result<Value> {
    let too_precise = || Error::unsupported("a rounding to more than 300 digits");
    let digits = i32::try_from(digits).ok().filter(|digits| digits.abs() <= 300).ok_or_else(too_precise)?;
    match value {
        Value::Float(number) if !number.is_finite() => Ok(value.clone()),
        Value::Float(number) if digits >= 0 => {
            let text = format!("{number:.*}", digits as usize);
            text.parse().map(Value::Float).map_err(|_| Error::raised("the result is not a number"))
        }
        Value::Float(number) => {
            let whole = int_of_float(*number)?.unwrap_or_default();
            let rounded = rounded_to_tens(whole, number.fract() != 0.0, digits.unsigned_abs())?;
            // A negative number that rounds to zero yields -0.0.
            Ok(Value::Float((rounded as f64).abs().copysign(*number)))
        }
        _ => match value.as_int() {
            Some(number) if digits >= 0 => Ok(Value::Int(number)),
            Some(number) => rounded_to_tens(number, false, digits.unsigned_abs()).map(Value::Int),
            None => Err(Error::raised(format!("a {} can't be rounded", value.type_name()))),
        },
    }
}

/// Rounds a number to a power of ten; ties go to the even digit. `has_more`: whether the number also has a fraction.
fn rounded_to_tens(number: i128, has_more: bool, digits: u32) -> Result<i128> {
    let Some(unit) = 10_i128.checked_pow(digits) else { return Ok(0) };
    let (quotient, rest) = (number / unit, (number % unit).abs());
    let is_up = match (2 * rest).cmp(&unit) {
        std::cmp::Ordering::Greater => true,
        std::cmp::Ordering::Equal => has_more || quotient % 2 != 0,
        std::cmp::Ordering::Less => false,
    };
    let quotient = quotient + if is_up { number.signum() } else { 0 };
    quotient.checked_mul(unit).ok_or_else(too_large)
}
