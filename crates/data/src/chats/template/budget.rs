//! What a template may do, and what each thing costs of one budget for a render: steps and bytes alike.
//!
//! The engine charges instructions, and the length of what operators and filters return. It does not charge what they walk
//! inside values, nor what methods make, so guards (`_read`, `_made`, `_opened`, `_data`) that `guarded.rs` puts around
//! operations charge that before the operation runs; filters and methods whose work is a product of two sizes have more
//! guards here.
//! Not here: where guards are put.

use super::super::json::tojson;
use super::super::{Date, marks};
use super::strings;
use super::weighed::{UNITS_PER_FUEL, Weight, charge, is_data, made, not_data, weight};
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters, functions};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Instructions that writing any chat once may cost, of which 64 bytes of what it makes are one: 32 MB.
const FUEL: u64 = 500_000;
/// More of them for each value of the chat, and for each byte of its text.
const FUEL_PER_NODE: u64 = 400;
const FUEL_PER_BYTE: u64 = 1;
/// What a template may write besides what the chat says: real ones write up to 20 KB.
const TEXT_BYTES: u64 = 512 << 10;
const TEXT_BYTES_PER_BYTE: u64 = 8;
/// A piece of text in a list.
const PIECE_UNITS: u64 = 64;
const EXCEPTION_CHARACTERS_MAX: usize = 2000;

/// The instructions that writing this chat once may cost.
pub(super) fn fuel(messages: &Value, tools: &Value) -> Result<u64, Error> {
    let (messages, tools) = (weight(messages)?, weight(tools)?);
    Ok(FUEL + FUEL_PER_NODE * (messages.nodes + tools.nodes) + FUEL_PER_BYTE * (messages.bytes + tools.bytes))
}

/// The bytes that the text of this chat may have, which tokenizing multiplies.
pub(super) fn text_bytes_max(messages: &Value, tools: &Value) -> Result<u64, Error> {
    Ok(TEXT_BYTES + TEXT_BYTES_PER_BYTE * (weight(messages)?.bytes + weight(tools)?.bytes))
}

/// Adds the guards, and all that a template may call.
pub(super) fn set_up(environment: &mut Environment<'static>, date: Date) {
    environment.add_filter("_read", read);
    environment.add_filter("_made", |state: &State<'_, '_>, value: Value| made(Some(state), value));
    environment.add_filter("_opened", opened);
    environment.add_filter("_modulo", |state: &mut State<'_, '_>, left: Value, right: Value| {
        charge(state, formatting(&left, &strings::formatted(&right)?)?)?;
        let result = strings::modulo(state, &left, &right)?;
        made(Some(state), result)
    });
    environment.add_filter("_data", |value: Value| if is_data(&value) { Ok(value) } else { Err(not_data()) });
    environment.set_formatter(|out, state, value| {
        charge(state, weight(value)?.units())?;
        minijinja::escape_formatter(out, state, value)
    });
    environment.set_unknown_method_callback(method);
    // To the engine, `none` is iterable too, as it is not in Python.
    environment.add_test("iterable", |value: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), String | Seq | Map | Iterable | Undefined)
    });
    add_filters(environment);
    add_functions(environment, date);
}

/// Charges for all that is inside a value, which the next operation walks.
fn read(state: &State<'_, '_>, value: Value) -> Result<Value, Error> {
    charge(state, weight(&value)?.units())?;
    Ok(value)
}

/// Charges for the items or characters of a value, which the next operation counts.
fn opened(state: &State<'_, '_>, value: Value) -> Result<Value, Error> {
    let units = if value.kind() == ValueKind::String { weight(&value)?.units() } else { length(&value) };
    charge(state, units)?;
    Ok(value)
}

fn length(value: &Value) -> u64 {
    value.len().unwrap_or(0) as u64
}

/// What arguments weigh together, those with names as well.
fn weight_of_all(arguments: &[Value]) -> Result<u64, Error> {
    let mut units = 0_u64;
    for argument in arguments {
        if argument.is_kwargs() {
            for name in argument.try_iter()? {
                units = units.saturating_add(weight(&argument.get_item(&name)?)?.units());
            }
        } else {
            units = units.saturating_add(weight(argument)?.units());
        }
    }
    Ok(units)
}

/// What a filter costs besides reading its operand and arguments, in units.
type Price = fn(&Value, &[Value]) -> Result<u64, Error>;

fn add_filters(environment: &mut Environment<'static>) {
    // Each item is looked at by all arguments, such as the attributes to sort by, and compared with others.
    let each: Price = |value, arguments| {
        let sorting = weight(value)?.units().saturating_mul(u64::from(u64::BITS - length(value).leading_zeros()));
        Ok(length(value).saturating_mul(weight_of_all(arguments)?).saturating_add(sorting))
    };
    let sum: Price = |value, _| Ok(length(value).saturating_mul(weight(value)?.units()) / UNITS_PER_FUEL);
    let trim: Price = |value, arguments| trimming(value, arguments);
    let escape: Price = |value, _| Ok(weight(value)?.units().saturating_mul(6));
    let indented: Price = |value, _| indenting(weight(value)?, 4);
    let characters: Price = |value, _| Ok(if value.as_str().is_some() { length(value) * PIECE_UNITS } else { 0 });
    let split: Price = |value, arguments| Ok(pieces(value, arguments));
    for (name, price, filter) in [
        ("map", each, Value::from_function(filters::map)),
        ("select", each, Value::from_function(filters::select)),
        ("reject", each, Value::from_function(filters::reject)),
        ("selectattr", each, Value::from_function(filters::selectattr)),
        ("rejectattr", each, Value::from_function(filters::rejectattr)),
        ("sort", each, Value::from_function(filters::sort)),
        ("dictsort", each, Value::from_function(filters::dictsort)),
        ("unique", each, Value::from_function(filters::unique)),
        ("groupby", each, Value::from_function(filters::groupby)),
        ("min", each, Value::from_function(filters::min)),
        ("max", each, Value::from_function(filters::max)),
        ("join", each, Value::from_function(filters::join)),
        ("sum", sum, Value::from_function(filters::sum)),
        ("trim", trim, Value::from_function(filters::trim)),
        ("escape", escape, Value::from_function(filters::escape)),
        ("e", escape, Value::from_function(filters::escape)),
        ("pprint", indented, Value::from_function(filters::pprint)),
        ("list", characters, Value::from_function(filters::list)),
        ("split", split, Value::from_function(filters::split)),
        ("lines", |value, _| Ok(pieces(value, &[Value::from("\n")])), Value::from_function(filters::lines)),
        ("format", formatting, Value::from_function(filters::format)),
    ] {
        environment.add_filter(name, move |state: &mut State<'_, '_>, arguments: Rest<ValueOrKwargs>| {
            let arguments = arguments.into_values();
            let Some((value, others)) = arguments.split_first() else {
                return Err(Error::from(ErrorKind::MissingArgument));
            };
            charge(state, price(value, others)?)?;
            filter.call(state, &arguments)
        });
    }
    environment.add_filter("tojson", |state: &State<'_, '_>, value: Value, arguments: Kwargs| {
        let indent: Option<u64> = arguments.get("indent")?;
        charge(state, indenting(weight(&value)?, indent.unwrap_or(0))?)?;
        tojson(&value, arguments)
    });
    environment.add_filter("generation", |text: String| format!("{}{text}{}", marks::BEGIN, marks::END));
}

fn add_functions(environment: &mut Environment<'static>, date: Date) {
    // It would print all that the template knows.
    environment.remove_global("debug");
    for (name, function) in [
        ("range", Value::from_function(functions::range)),
        ("dict", Value::from_function(functions::dict)),
        ("namespace", Value::from_function(functions::namespace)),
    ] {
        environment.add_function(name, move |state: &mut State<'_, '_>, arguments: Rest<ValueOrKwargs>| {
            let arguments = arguments.into_values();
            charge(state, weight_of_all(&arguments)?)?;
            let value = function.call(state, &arguments)?;
            made(Some(state), value)
        });
    }
    environment.add_function("raise_exception", |state: &State<'_, '_>, message: Value| -> Result<Value, Error> {
        let message = read(state, message)?.to_string();
        Err(Error::new(ErrorKind::InvalidOperation, message.chars().take(EXCEPTION_CHARACTERS_MAX).collect::<String>()))
    });
    environment.add_function("strftime_now", move |state: &State<'_, '_>, format: &str| {
        // The longest name that a directive of two characters stands for is `Wednesday` or `September`.
        charge(state, format.len() as u64 * 5)?;
        let unknown = |directive| format!("strftime_now does not know {directive}");
        date.strftime(format).map_err(|directive| Error::new(ErrorKind::InvalidOperation, unknown(directive)))
    });
}

/// Python's methods of texts, lists and maps.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    charge(state, weight_of_all(arguments)?)?;
    let text_price = match name {
        "strip" | "lstrip" | "rstrip" => trimming(value, arguments)?,
        "split" => pieces(value, arguments),
        "splitlines" => pieces(value, &[Value::from("\n")]),
        "replace" => replacing(value, arguments),
        "format" => formatting(value, arguments)?,
        "rsplit" | "partition" | "rpartition" => pieces(value, arguments),
        "zfill" => arguments.first().and_then(Value::as_i64).map_or(0, i64::unsigned_abs),
        "join" => arguments.first().map_or(0, length).saturating_mul(weight(value)?.bytes),
        _ => 0,
    };
    let price = match value.kind() {
        ValueKind::String => text_price,
        ValueKind::Seq => weight(value)?.units(),
        _ => 0,
    };
    charge(state, price)?;
    let result = match value.as_str().and_then(|text| strings::method(text, name, arguments)) {
        Some(result) => result?,
        None => unknown_method_callback(state, value, name, arguments)?,
    };
    made(Some(state), result)
}

/// Each character at the ends of a text is compared with each of the characters to strip.
fn trimming(value: &Value, arguments: &[Value]) -> Result<u64, Error> {
    let characters = weight_of_all(arguments)?.saturating_sub(UNITS_PER_FUEL);
    Ok(weight(value)?.bytes.saturating_mul(characters))
}

/// Lines of text may begin with as many spaces as the value nests.
fn indenting(weight: Weight, indent: u64) -> Result<u64, Error> {
    Ok(weight.nodes.saturating_mul(u64::from(weight.depth)).saturating_mul(indent.min(16)))
}

/// The pieces that a text is split into.
fn pieces(value: &Value, arguments: &[Value]) -> u64 {
    let text = value.as_str().unwrap_or_default();
    let count = match arguments.first().and_then(Value::as_str) {
        Some(separator) => text.matches(separator).count(),
        None => text.split_whitespace().count(),
    };
    (count as u64).saturating_mul(PIECE_UNITS)
}

/// What a text grows by where texts in it are replaced.
fn replacing(value: &Value, arguments: &[Value]) -> u64 {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let (from, to) = (text(arguments.first()), text(arguments.get(1)));
    match to.len().checked_sub(from.len()) {
        None | Some(0) => 0,
        Some(growth) => {
            let matches = value.as_str().unwrap_or_default().matches(&from).count();
            (matches as u64).saturating_mul(growth as u64)
        }
    }
}

/// What a format may write: its fields may each repeat all arguments, and widths and precisions are numbers in it or among its
/// arguments.
fn formatting(value: &Value, arguments: &[Value]) -> Result<u64, Error> {
    let format = value.as_str().unwrap_or_default();
    let fields = format.matches(['%', '{']).count() as u64;
    let in_format = format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let in_format = in_format.map(|digits| digits.parse().unwrap_or(u64::MAX));
    let as_arguments = arguments.iter().filter(|_| format.contains(['*', '{'])).filter_map(Value::as_i64);
    let widths = in_format.chain(as_arguments.map(i64::unsigned_abs)).fold(0, u64::saturating_add);
    Ok(fields.saturating_mul(weight_of_all(arguments)?.saturating_add(widths)))
}
