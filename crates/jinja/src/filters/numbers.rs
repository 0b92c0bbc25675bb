//! Filters of numbers.

use crate::Value;
use crate::arguments::{Arguments, integer, text};
use crate::ast::BinaryOperator;
use crate::error::{Error, Result};
use crate::numbers::{float_in_form, float_of, int_of, int_of_float, rounded};
use crate::state::Render;

pub(super) fn abs(_: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    arguments.none("abs")?;
    match value {
        Value::Float(number) => Ok(Value::Float(number.abs())),
        _ => match value.as_int() {
            Some(number) => number.checked_abs().map(Value::Int).ok_or_else(crate::numbers::too_large),
            None => Err(Error::raised(format!("a {} has no absolute value", value.type_name()))),
        },
    }
}

pub(super) fn int(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    charge_digits(render, &value)?;
    let [default, base] = arguments.bind("int", ["default", "base"], 0)?;
    let found = match &value {
        Value::Undefined(undefined) => return Err(undefined.error()),
        Value::Text(text) => {
            let base = base.as_ref().map(integer).transpose()?.unwrap_or(10);
            match int_of(&text.text, base)? {
                Some(number) => Some(number),
                None => match float_of(&text.text) {
                    Some(number) if number.is_finite() => int_of_float(number)?,
                    _ => None,
                },
            }
        }
        Value::Float(number) => int_of_float(*number)?,
        _ => value.as_int(),
    };
    Ok(found.map(Value::Int).or(default).unwrap_or(Value::Int(0)))
}

pub(super) fn float(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    charge_digits(render, &value)?;
    let [default] = arguments.bind("float", ["default"], 0)?;
    let found = match &value {
        Value::Undefined(undefined) => return Err(undefined.error()),
        _ => float_of_value(&value),
    };
    Ok(found.map(Value::Float).or(default).unwrap_or(Value::Float(0.0)))
}

/// Charges for the digits of a text, which are read several times.
fn charge_digits(render: &mut Render<'_>, value: &Value) -> Result<()> {
    render.meter.charge(value.as_str().map_or(0, |text| text.len().saturating_mul(8)))
}

fn float_of_value(value: &Value) -> Option<f64> {
    match value {
        Value::Text(text) => float_of(&text.text),
        Value::Float(number) => Some(*number),
        _ => value.as_int().map(|number| number as f64),
    }
}

pub(super) fn round(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    let [precision, method] = arguments.bind("round", ["precision", "method"], 0)?;
    let precision = precision.unwrap_or(Value::Int(0));
    let method = method.unwrap_or(Value::from("common"));
    let method = match text(&method)? {
        "common" => return rounded(&value, integer(&precision)?),
        "ceil" => f64::ceil,
        "floor" => f64::floor,
        _ => return Err(Error::raised("`round` has the methods `common`, `ceil` and `floor`")),
    };
    let unit = render.binary(BinaryOperator::Power, &Value::Int(10), &precision)?;
    let scaled = match render.binary(BinaryOperator::Multiply, &value, &unit)? {
        Value::Float(number) => {
            let number = int_of_float(method(number))?.ok_or_else(|| Error::raised("NaN can't be rounded"))?;
            Value::Int(number)
        }
        number if number.as_int().is_some() => number,
        other => return Err(Error::raised(format!("a {} can't be rounded", other.type_name()))),
    };
    render.binary(BinaryOperator::Divide, &scaled, &unit)
}

pub(super) fn filesizeformat(render: &mut Render<'_>, value: Value, arguments: Arguments) -> Result<Value> {
    charge_digits(render, &value)?;
    let [binary] = arguments.bind("filesizeformat", ["binary"], 0)?;
    let number = float_of_value(&value).ok_or_else(|| match &value {
        Value::Undefined(undefined) => undefined.error(),
        _ => Error::raised(format!("a {} is not a number of bytes", value.type_name())),
    })?;
    let is_binary = binary.is_some_and(|binary| binary.is_true());
    let base: f64 = if is_binary { 1024.0 } else { 1000.0 };
    if number == 1.0 {
        return Ok(Value::from("1 Byte"));
    } else if number < base {
        let whole = int_of_float(number)?.ok_or_else(|| Error::raised("NaN is not a number of bytes"))?;
        return Ok(Value::from(format!("{whole} Bytes")));
    }
    let prefixes = ["k", "M", "G", "T", "P", "E", "Z", "Y"];
    let place = (0..prefixes.len()).find(|&place| number < base.powi(place as i32 + 2)).unwrap_or(prefixes.len() - 1);
    let prefix =
        if is_binary { format!("{}iB", prefixes[place].to_uppercase()) } else { format!("{}B", prefixes[place]) };
    let scaled = base * number / base.powi(place as i32 + 2);
    Ok(Value::from(format!("{} {prefix}", float_in_form(scaled, 'f', 1, false))))
}
