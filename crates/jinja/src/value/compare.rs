//! Equality, order, hashes and `in`, with Python's semantics.

use crate::Value;
use crate::error::{Error, Meter, Result};
use crate::value::Items;
use std::cmp::Ordering;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Python's `==`.
pub(crate) fn equal(meter: &mut Meter, left: &Value, right: &Value) -> Result<bool> {
    meter.charge(16)?;
    Ok(match (left, right) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Text(a), Value::Text(b)) => {
            meter.charge(a.text.len().min(b.text.len()))?;
            a.text == b.text
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            a.len() == b.len() && first_difference(meter, a, b)?.is_none()
        }
        (Value::Dict(a), Value::Dict(b)) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for (key, value) in a.iter() {
                let Some(other) = b.find(meter, key)?.cloned() else { return Ok(false) };
                if !equal(meter, value, &other)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Range(a), Value::Range(b)) => {
            let len = a.len();
            len == b.len() && (len == 0 || a.start == b.start) && (len <= 1 || a.step == b.step)
        }
        (Value::Function(a), Value::Function(b)) => a == b,
        (Value::Object(a), Value::Object(b)) => a == b,
        (Value::View(..), Value::View(..)) => {
            return Err(Error::unsupported("a comparison of `keys()`, `values()` or `items()`"));
        }
        (Value::Method(_), Value::Method(_)) => return Err(Error::unsupported("a comparison of methods")),
        _ => number_order(left, right) == Some(Some(Ordering::Equal)),
    })
}

/// The first position within both lengths where two lists differ.
fn first_difference(meter: &mut Meter, left: &[Value], right: &[Value]) -> Result<Option<usize>> {
    for (at, (a, b)) in left.iter().zip(right).enumerate() {
        if !equal(meter, a, b)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// The order of two numbers: `None` if one is not a number, `Some(None)` if one is NaN.
fn number_order(left: &Value, right: &Value) -> Option<Option<Ordering>> {
    match (left, right) {
        (Value::Float(a), Value::Float(b)) => Some(a.partial_cmp(b)),
        (Value::Float(a), _) => Some(float_and_int(*a, right.as_int()?)),
        (_, Value::Float(b)) => Some(float_and_int(*b, left.as_int()?).map(Ordering::reverse)),
        _ => Some(Some(left.as_int()?.cmp(&right.as_int()?))),
    }
}

/// Exact: an integer may have more digits than a floating-point number can represent.
fn float_and_int(float: f64, int: i128) -> Option<Ordering> {
    if float.is_nan() || float.abs() >= 1e38 {
        return float.partial_cmp(&0.0);
    }
    Some((float.trunc() as i128).cmp(&int).then(float.fract().partial_cmp(&0.0)?))
}

/// Python's order of two values; `None` if it involves NaN. Errors: values of these types are not ordered.
pub(crate) fn order(meter: &mut Meter, left: &Value, right: &Value, sign: &str) -> Result<Option<Ordering>> {
    meter.charge(16)?;
    match (left, right) {
        (Value::Text(a), Value::Text(b)) => {
            meter.charge(a.text.len().min(b.text.len()))?;
            Ok(Some(a.text.cmp(&b.text)))
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => order_of_items(meter, a, b, sign),
        (Value::View(..), Value::View(..)) => Err(Error::unsupported("a comparison of `keys()` or `items()`")),
        (Value::Undefined(undefined), _) | (_, Value::Undefined(undefined)) => Err(undefined.error()),
        _ => number_order(left, right).ok_or_else(|| {
            let (left, right) = (left.type_name(), right.type_name());
            Error::raised(format!("`{sign}` can't compare {left} and {right}"))
        }),
    }
}

fn order_of_items(meter: &mut Meter, left: &Items, right: &Items, sign: &str) -> Result<Option<Ordering>> {
    match first_difference(meter, left, right)? {
        Some(at) => order(meter, &left[at], &right[at], sign),
        None => Ok(Some(left.len().cmp(&right.len()))),
    }
}

/// A hash; equal values have equal hashes. Errors: the value is not hashable.
pub(crate) fn hash(meter: &mut Meter, value: &Value) -> Result<u64> {
    meter.charge(16)?;
    let mut hasher = DefaultHasher::new();
    match value {
        Value::Text(text) => {
            meter.charge(text.text.len())?;
            return Ok(hash_of_text(&text.text));
        }
        Value::Float(number) if number.fract() == 0.0 && number.abs() < 1e38 => (*number as i128).hash(&mut hasher),
        Value::Float(number) => number.to_bits().hash(&mut hasher),
        Value::Bool(_) | Value::Int(_) => value.as_int().unwrap_or_default().hash(&mut hasher),
        Value::Tuple(items) => {
            for item in items.iter() {
                hash(meter, item)?.hash(&mut hasher);
            }
        }
        Value::List(_) | Value::Dict(_) => {
            return Err(Error::raised(format!("a {} can't be a key", value.type_name())));
        }
        Value::View(..) | Value::Method(_) => return Err(Error::unsupported("a view or method as a key")),
        Value::Undefined(_) | Value::None | Value::Range(_) | Value::Function(_) | Value::Object(_) => {
            std::mem::discriminant(value).hash(&mut hasher);
        }
    }
    Ok(hasher.finish())
}

pub(crate) fn hash_of_text(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Sorts by keys like Python's `sorted`, which is stable. Errors: two keys are not ordered.
pub(crate) fn sort(meter: &mut Meter, keyed: &mut Vec<(Value, Value)>, is_descending: bool) -> Result<()> {
    if keyed.len() < 2 {
        return Ok(());
    }
    meter.charge_items(2 * keyed.len())?;
    let mut right = keyed.split_off(keyed.len() / 2);
    let mut left = std::mem::take(keyed);
    sort(meter, &mut left, is_descending)?;
    sort(meter, &mut right, is_descending)?;
    let mut right = right.into_iter().peekable();
    for item in left {
        while let Some(next) = right.peek() {
            let order = order(meter, &next.0, &item.0, "<")?;
            if order != Some(if is_descending { Ordering::Greater } else { Ordering::Less }) {
                break;
            }
            keyed.extend(right.next());
        }
        keyed.push(item);
    }
    keyed.extend(right);
    Ok(())
}
