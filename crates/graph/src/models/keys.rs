//! The keys of a config.json: those that must be there, those that ask for a variant which is not built, and what
//! values make sense. Every error names its key.

use crate::GraphError;
use serde_json::Value;

/// The names under which `transformers` has the tangent's approximation of GELU.
pub(super) const GELU_TANH: [&str; 5] =
    ["gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python_tanh", "gelu_accurate"];

/// Extents above this are refused: with them, products of a few stay far inside 64 bits.
pub(super) const LARGEST_EXTENT: usize = 1 << 24;

/// More layers than this are refused, and not described.
pub(super) const MOST_LAYERS: usize = 1_000;

pub(super) fn bad(key: &str, problem: impl Into<String>) -> GraphError {
    GraphError::BadConfig { key: key.to_owned(), problem: problem.into() }
}

/// Errors: a key is missing or is not a whole number.
pub(super) fn require_whole(value: &Value, keys: &[&str]) -> Result<(), GraphError> {
    for key in keys {
        match value.get(key) {
            None => return Err(bad(key, "is missing")),
            Some(found) if found.as_u64().is_none() => {
                return Err(bad(key, format!("is {found}; it must be a whole number above 0")));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// A key that is true or false; absent or null is false. Errors: it is neither.
pub(super) fn flag(value: &Value, key: &str) -> Result<bool, GraphError> {
    match value.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(found) => found.as_bool().ok_or_else(|| bad(key, format!("is {found}; it must be true or false"))),
    }
}

/// A whole number, or a default if the key is absent or null. Errors: it is another value.
pub(super) fn whole_or(value: &Value, key: &str, default: usize) -> Result<usize, GraphError> {
    let Some(found) = value.get(key).filter(|found| !found.is_null()) else { return Ok(default) };
    let number = found.as_u64().and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| bad(key, format!("is {found}; it must be a whole number")))
}

/// Moves values from the names that `transformers` accepts for a family's keys (`attribute_map` of its configuration) to
/// the keys. Null stands for a key's absence. Errors: both are there and differ.
pub(super) fn resolve_aliases(value: &mut Value, aliases: &[(&str, &str)]) -> Result<(), GraphError> {
    let Some(map) = value.as_object_mut() else { return Ok(()) };
    for &(alias, key) in aliases {
        let Some(found) = map.remove(alias).filter(|found| !found.is_null()) else { continue };
        match map.get(key).filter(|own| !own.is_null()) {
            Some(own) if *own != found => {
                return Err(bad(alias, format!("is {found}, which contradicts {key} = {own}")));
            }
            _ => map.insert(key.to_owned(), found),
        };
    }
    Ok(())
}

/// Errors: a key is there with a value that is none of those built. Null stands for the key's absence.
pub(super) fn refuse_others(value: &Value, built: &[(&str, &[Value])]) -> Result<(), GraphError> {
    for (key, accepted) in built {
        if let Some(found) = value.get(key).filter(|found| !found.is_null() && !accepted.contains(found)) {
            let accepted = accepted.iter().map(Value::to_string).collect::<Vec<_>>().join(" or ");
            return Err(bad(
                key,
                match accepted.is_empty() {
                    true => format!("is {found}, which is not supported"),
                    false => format!("is {found}; only {accepted} is supported"),
                },
            ));
        }
    }
    Ok(())
}

/// Errors: an extent is zero or beyond counting.
pub(super) fn check_extents(extents: &[(&str, usize)]) -> Result<(), GraphError> {
    for &(key, extent) in extents {
        if extent == 0 || extent > LARGEST_EXTENT {
            return Err(bad(key, format!("is {extent}; it must be between 1 and {LARGEST_EXTENT}")));
        }
    }
    Ok(())
}

/// Errors: there are no layers, or too many.
pub(super) fn check_layers(key: &str, layers: usize) -> Result<(), GraphError> {
    check_extents(&[(key, layers)])?;
    if layers > MOST_LAYERS {
        return Err(bad(key, format!("is {layers}; at most 1,000 layers are supported")));
    }
    Ok(())
}

/// Errors: a rate is not from 0 to below 1.
pub(super) fn check_rates(rates: &[(&str, f32)]) -> Result<(), GraphError> {
    match rates.iter().find(|(_, rate)| !(0.0..1.0).contains(rate)) {
        Some((key, rate)) => Err(bad(key, format!("is {rate}; it must be at least 0 and below 1"))),
        None => Ok(()),
    }
}

/// Errors: a number is not above zero.
pub(super) fn check_positive(numbers: &[(&str, f32)]) -> Result<(), GraphError> {
    match numbers.iter().find(|(_, x)| !(x.is_finite() && *x > 0.0)) {
        Some((key, x)) => Err(bad(key, format!("is {x}; it must be above 0"))),
        None => Ok(()),
    }
}

/// A configuration from its keys. Errors: `BadConfig`.
pub(super) fn parse<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, GraphError> {
    serde_json::from_value(value).map_err(|e| bad("(file)", e.to_string()))
}

/// The text of a config.json: a configuration's own keys and some more.
pub(super) fn to_json(config: &impl serde::Serialize, more: &Value) -> String {
    let mut value = serde_json::to_value(config).expect("a configuration is plain data");
    let map = value.as_object_mut().expect("a struct serialises to an object");
    map.extend(more.as_object().expect("an object literal").clone());
    serde_json::to_string_pretty(&value).expect("JSON values serialise")
}
