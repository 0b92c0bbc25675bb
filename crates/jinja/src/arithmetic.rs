//! Operators with Python's semantics.

use crate::Value;
use crate::ast::BinaryOperator;
use crate::error::{Error, Result};
use crate::numbers::too_large;
use crate::state::Render;

impl Render<'_> {
    pub(crate) fn binary(&mut self, operator: BinaryOperator, left: &Value, right: &Value) -> Result<Value> {
        match (operator, left, right) {
            (BinaryOperator::Modulo, Value::Text(text), _) => return self.percent(text, right),
            (_, Value::Undefined(undefined), _) | (_, _, Value::Undefined(undefined)) => return Err(undefined.error()),
            (BinaryOperator::Add, Value::Text(_), Value::Text(_)) => return self.add_texts(left, right),
            (BinaryOperator::Add, Value::List(a), Value::List(b)) => {
                self.meter.charge_items(a.len() + b.len())?;
                return Value::list([&a[..], &b[..]].concat()).within_depth();
            }
            (BinaryOperator::Add, Value::Tuple(a), Value::Tuple(b)) => {
                self.meter.charge_items(a.len() + b.len())?;
                return Value::tuple([&a[..], &b[..]].concat()).within_depth();
            }
            (BinaryOperator::Multiply, Value::Text(_) | Value::List(_) | Value::Tuple(_), _) => {
                if let Some(times) = right.as_int() {
                    return self.repeat(left, times);
                }
            }
            (BinaryOperator::Multiply, _, Value::Text(_) | Value::List(_) | Value::Tuple(_)) => {
                if let Some(times) = left.as_int() {
                    return self.repeat(right, times);
                }
            }
            (BinaryOperator::Subtract, Value::View(..), _) => {
                return Err(Error::unsupported("a difference of `keys()` or `items()`"));
            }
            _ => {}
        }
        numbers(operator, left, right)
    }

    fn add_texts(&mut self, left: &Value, right: &Value) -> Result<Value> {
        let (Value::Text(a), Value::Text(b)) = (left, right) else { return Ok(Value::None) };
        self.meter.charge(a.text.len() + b.text.len())?;
        if a.is_markup == b.is_markup {
            return Ok(Value::like(a, [&*a.text, &*b.text].concat()));
        }
        // Adding to markup escapes the added text.
        let (a, b) = (self.escaped(left)?, self.escaped(right)?);
        Ok(Value::markup(a + &b))
    }

    fn repeat(&mut self, value: &Value, times: i128) -> Result<Value> {
        let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
        match value {
            Value::Text(text) => {
                self.meter.charge(text.text.len().saturating_mul(times))?;
                Ok(Value::like(text, if text.text.is_empty() { String::new() } else { text.text.repeat(times) }))
            }
            Value::List(items) | Value::Tuple(items) => {
                self.meter.charge_items(items.len().saturating_mul(times))?;
                let times = if items.is_empty() { 0 } else { times };
                let repeated: Vec<Value> = (0..times).flat_map(|_| items.iter().cloned()).collect();
                Ok(if matches!(value, Value::List(_)) { Value::list(repeated) } else { Value::tuple(repeated) })
            }
            _ => Ok(Value::None),
        }
    }
}

pub(crate) fn negative(value: &Value) -> Result<Value> {
    match value {
        Value::Float(number) => Ok(Value::Float(-number)),
        _ => match value.as_int() {
            Some(number) => number.checked_neg().map(Value::Int).ok_or_else(too_large),
            None => Err(wrong_operand("-", value)),
        },
    }
}

pub(crate) fn positive(value: &Value) -> Result<Value> {
    match value {
        Value::Float(_) => Ok(value.clone()),
        _ => value.as_int().map(Value::Int).ok_or_else(|| wrong_operand("+", value)),
    }
}

fn wrong_operand(sign: &str, value: &Value) -> Error {
    match value {
        Value::Undefined(undefined) => undefined.error(),
        _ => Error::raised(format!("`{sign}` does not support a {}", value.type_name())),
    }
}

fn division_by_zero() -> Error {
    Error::raised("division by zero")
}

fn numbers(operator: BinaryOperator, left: &Value, right: &Value) -> Result<Value> {
    if let (Some(a), Some(b)) = (left.as_int(), right.as_int()) {
        return integers(operator, a, b);
    }
    let number = |value: &Value| match value {
        Value::Float(number) => Some(*number),
        _ => value.as_int().map(|number| number as f64),
    };
    let (Some(a), Some(b)) = (number(left), number(right)) else {
        let (sign, left, right) = (sign(operator), left.type_name(), right.type_name());
        return Err(Error::raised(format!("`{sign}` does not support a {left} and a {right}")));
    };
    floats(operator, a, b).map(Value::Float)
}

fn sign(operator: BinaryOperator) -> &'static str {
    match operator {
        BinaryOperator::Add => "+",
        BinaryOperator::Subtract => "-",
        BinaryOperator::Multiply => "*",
        BinaryOperator::Divide => "/",
        BinaryOperator::FloorDivide => "//",
        BinaryOperator::Modulo => "%",
        BinaryOperator::Power => "**",
    }
}

fn integers(operator: BinaryOperator, a: i128, b: i128) -> Result<Value> {
    let result = match operator {
        BinaryOperator::Add => a.checked_add(b),
        BinaryOperator::Subtract => a.checked_sub(b),
        BinaryOperator::Multiply => a.checked_mul(b),
        BinaryOperator::Divide => {
            // Larger integers are not exact as floating-point numbers.
            let is_exact = |number: i128| number.unsigned_abs() <= 1 << 53;
            return match (is_exact(a) && is_exact(b), b) {
                (_, 0) => Err(division_by_zero()),
                (true, _) => Ok(Value::Float(a as f64 / b as f64)),
                (false, _) => Err(Error::unsupported("a division of integers beyond 53 bits")),
            };
        }
        BinaryOperator::FloorDivide | BinaryOperator::Modulo if b == 0 => return Err(division_by_zero()),
        // The remainder has the sign of the divisor.
        BinaryOperator::FloorDivide => {
            a.checked_div(b).map(|quotient| quotient - i128::from(a % b != 0 && (a < 0) != (b < 0)))
        }
        BinaryOperator::Modulo => a
            .checked_rem(b)
            .map(|remainder| if remainder != 0 && (a < 0) != (b < 0) { remainder + b } else { remainder }),
        BinaryOperator::Power if b < 0 => return floats(operator, a as f64, b as f64).map(Value::Float),
        BinaryOperator::Power => match (a, u32::try_from(b)) {
            (_, Ok(exponent)) => a.checked_pow(exponent),
            (0 | 1, _) => Some(a),
            (-1, _) => Some(if b % 2 == 0 { 1 } else { -1 }),
            _ => None,
        },
    };
    result.map(Value::Int).ok_or_else(too_large)
}

fn floats(operator: BinaryOperator, a: f64, b: f64) -> Result<f64> {
    Ok(match operator {
        BinaryOperator::Add => a + b,
        BinaryOperator::Subtract => a - b,
        BinaryOperator::Multiply => a * b,
        BinaryOperator::Divide | BinaryOperator::FloorDivide | BinaryOperator::Modulo if b == 0.0 => {
            return Err(division_by_zero());
        }
        BinaryOperator::Divide => a / b,
        BinaryOperator::FloorDivide => floor_and_remainder(a, b).0,
        BinaryOperator::Modulo => floor_and_remainder(a, b).1,
        BinaryOperator::Power => {
            if a == 0.0 && b < 0.0 {
                return Err(Error::raised("0 has no negative power"));
            }
            if a < 0.0 && a.is_finite() && b.is_finite() && b.fract() != 0.0 {
                return Err(Error::unsupported("a complex number"));
            }
            let power = a.powf(b);
            if power.is_infinite() && a.is_finite() && b.is_finite() {
                return Err(Error::raised("a power is too large"));
            }
            power
        }
    })
}

/// Source: CPython, `float_divmod` in Objects/floatobject.c.
fn floor_and_remainder(a: f64, b: f64) -> (f64, f64) {
    let mut remainder = a % b;
    let mut quotient = (a - remainder) / b;
    if remainder == 0.0 {
        remainder = 0.0_f64.copysign(b);
    } else if (b < 0.0) != (remainder < 0.0) {
        remainder += b;
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return (0.0_f64.copysign(a / b), remainder);
    }
    let floor = quotient.floor();
    (if quotient - floor > 0.5 { floor + 1.0 } else { floor }, remainder)
}
