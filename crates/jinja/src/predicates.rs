//! The tests after `is`.

use crate::Value;
use crate::arguments::Arguments;
use crate::ast::{BinaryOperator, CompareOperator};
use crate::error::{Error, Result};
use crate::filters::filter_function;
use crate::state::{Object, Render, TestFunction};

/// The test with this name.
pub(crate) fn test_function(name: &str) -> Option<TestFunction> {
    Some(match name {
        "defined" => |_, value, arguments| {
            arguments.none("defined")?;
            Ok(!matches!(value, Value::Undefined(_)))
        },
        "undefined" => |_, value, arguments| {
            arguments.none("undefined")?;
            Ok(matches!(value, Value::Undefined(_)))
        },
        "none" => |_, value, arguments| {
            arguments.none("none")?;
            Ok(value.is_none())
        },
        "boolean" => |_, value, arguments| {
            arguments.none("boolean")?;
            Ok(matches!(value, Value::Bool(_)))
        },
        "true" => |_, value, arguments| {
            arguments.none("true")?;
            Ok(matches!(value, Value::Bool(true)))
        },
        "false" => |_, value, arguments| {
            arguments.none("false")?;
            Ok(matches!(value, Value::Bool(false)))
        },
        "integer" => |_, value, arguments| {
            arguments.none("integer")?;
            Ok(matches!(value, Value::Int(_)))
        },
        "float" => |_, value, arguments| {
            arguments.none("float")?;
            Ok(matches!(value, Value::Float(_)))
        },
        "number" => |_, value, arguments| {
            arguments.none("number")?;
            Ok(matches!(value, Value::Int(_) | Value::Float(_) | Value::Bool(_)))
        },
        "string" => |_, value, arguments| {
            arguments.none("string")?;
            Ok(value.as_str().is_some())
        },
        "mapping" => |_, value, arguments| {
            arguments.none("mapping")?;
            Ok(value.as_dict().is_some())
        },
        "sequence" => |_, value, arguments| {
            arguments.none("sequence")?;
            use Value::{Dict, List, Range, Text, Tuple, Undefined};
            Ok(matches!(value, Text(_) | List(_) | Tuple(_) | Dict(_) | Range(_) | Undefined(_)))
        },
        "iterable" => |render, value, arguments| {
            arguments.none("iterable")?;
            Ok(match value {
                Value::Object(id) => matches!(render.objects[id.0], Object::Generator(_) | Object::Loop(_)),
                _ => render.iter(&value).is_ok(),
            })
        },
        "callable" => |render, value, arguments| {
            arguments.none("callable")?;
            Ok(match value {
                Value::Object(id) => {
                    matches!(render.objects[id.0], Object::Macro(..) | Object::Joiner(..) | Object::Loop(_))
                }
                _ => matches!(value, Value::Function(_) | Value::Method(_) | Value::Undefined(_)),
            })
        },
        "escaped" => |_, value, arguments| {
            arguments.none("escaped")?;
            Ok(matches!(value, Value::Text(text) if text.is_markup))
        },
        "odd" => |render, value, arguments| {
            arguments.none("odd")?;
            remainder_is(render, &value, &Value::Int(2), 1)
        },
        "even" => |render, value, arguments| {
            arguments.none("even")?;
            remainder_is(render, &value, &Value::Int(2), 0)
        },
        "divisibleby" => |render, value, arguments| {
            let [number] = arguments.bind("divisibleby", ["num"], 1)?;
            remainder_is(render, &value, &number.unwrap_or(Value::None), 0)
        },
        "lower" => |render, value, arguments| {
            arguments.none("lower")?;
            let text = render.text_of(&value)?;
            render.meter.charge(text.len())?;
            Ok(text.chars().any(char::is_lowercase) && !has_upper_or_title(&text))
        },
        "upper" => |render, value, arguments| {
            arguments.none("upper")?;
            let text = render.text_of(&value)?;
            render.meter.charge(text.len())?;
            Ok(text.chars().any(char::is_uppercase) && !has_lower_or_title(&text))
        },
        "filter" => |_, value, arguments| {
            arguments.none("filter")?;
            named(&value, |name| filter_function(name).is_some())
        },
        "test" => |_, value, arguments| {
            arguments.none("test")?;
            named(&value, |name| test_function(name).is_some())
        },
        "in" => |render, value, arguments| {
            let [all] = arguments.bind("in", ["seq"], 1)?;
            render.contains(&all.unwrap_or(Value::None), &value)
        },
        "sameas" => |_, value, arguments| {
            let [other] = arguments.bind("sameas", ["other"], 1)?;
            same(&value, &other.unwrap_or(Value::None))
        },
        "==" | "eq" | "equalto" => {
            |render, value, arguments| compared(render, CompareOperator::Equal, value, arguments)
        }
        "!=" | "ne" => |render, value, arguments| compared(render, CompareOperator::NotEqual, value, arguments),
        ">" | "gt" | "greaterthan" => {
            |render, value, arguments| compared(render, CompareOperator::Greater, value, arguments)
        }
        ">=" | "ge" => |render, value, arguments| compared(render, CompareOperator::GreaterOrEqual, value, arguments),
        "<" | "lt" | "lessthan" => |render, value, arguments| compared(render, CompareOperator::Less, value, arguments),
        "<=" | "le" => |render, value, arguments| compared(render, CompareOperator::LessOrEqual, value, arguments),
        _ => return None,
    })
}

fn compared(render: &mut Render<'_>, operator: CompareOperator, value: Value, arguments: Arguments) -> Result<bool> {
    let [other] = arguments.bind(operator.sign(), [""], 1)?;
    render.compare(operator, &value, &other.unwrap_or(Value::None))
}

fn remainder_is(render: &mut Render<'_>, value: &Value, divisor: &Value, expected: i128) -> Result<bool> {
    let remainder = render.binary(BinaryOperator::Modulo, value, divisor)?;
    render.compare(CompareOperator::Equal, &remainder, &Value::Int(expected))
}

fn named(value: &Value, exists: fn(&str) -> bool) -> Result<bool> {
    match value {
        Value::List(_) | Value::Dict(_) => Err(Error::raised(format!("a {} is not a name", value.type_name()))),
        _ => Ok(value.as_str().is_some_and(exists)),
    }
}

/// Python's `is`. Errors: the result depends on Python's storage of values.
fn same(value: &Value, other: &Value) -> Result<bool> {
    match (value, other) {
        (Value::None, Value::None) => Ok(true),
        (Value::Bool(a), Value::Bool(b)) => Ok(a == b),
        // Python caches these values.
        (Value::Int(a), Value::Int(b)) if a != b || (-5..=256).contains(a) => Ok(a == b),
        (Value::Text(a), Value::Text(b)) if a.text != b.text => Ok(false),
        (Value::Float(a), Value::Float(b)) if a != b => Ok(false),
        (Value::Object(a), Value::Object(b)) => Ok(a == b),
        _ if value.type_name() != other.type_name() => Ok(false),
        _ => Err(Error::unsupported(format!("`is sameas` of two values of the type {}", value.type_name()))),
    }
}

fn is_title_case(c: char) -> bool {
    matches!(c, '\u{1c5}' | '\u{1c8}' | '\u{1cb}' | '\u{1f2}' | '\u{1f88}'..='\u{1f8f}' | '\u{1f98}'..='\u{1f9f}')
        || matches!(c, '\u{1fa8}'..='\u{1faf}' | '\u{1fbc}' | '\u{1fcc}' | '\u{1ffc}')
}

/// Whether a text has letters that `islower` excludes.
pub(crate) fn has_upper_or_title(text: &str) -> bool {
    text.chars().any(|c| c.is_uppercase() || is_title_case(c))
}

/// Whether a text has letters that `isupper` excludes.
pub(crate) fn has_lower_or_title(text: &str) -> bool {
    text.chars().any(|c| c.is_lowercase() || is_title_case(c))
}
