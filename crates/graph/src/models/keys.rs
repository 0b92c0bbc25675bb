//! Checks of the keys of a config.json: required keys, unsupported variants, and ranges of values. Every error names
//! its key.

use crate::GraphError;
use serde_json::Value;

/// The names in `transformers` of GELU's tanh approximation.
pub(super) const GELU_TANH: [&str; 5] =
    ["gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python_tanh", "gelu_accurate"];

/// Larger extents are rejected, so that a product of two stays far within 64 bits.
pub(super) const LARGEST_EXTENT: usize = 1 << 24;

/// Models with more layers are rejected.
pub(super) const MOST_LAYERS: usize = 1_000;

pub(crate) fn bad(key: &str, problem: impl Into<String>) -> GraphError {
    GraphError::BadConfig { key: key.to_owned(), problem: problem.into() }
}

/// Errors: `BadConfig` if a key is missing or is not a whole number above 0.
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

/// A whole number; `default` if the key is absent or null. Errors: `BadConfig` for another value.
pub(super) fn whole_or(value: &Value, key: &str, default: usize) -> Result<usize, GraphError> {
    let Some(found) = value.get(key).filter(|found| !found.is_null()) else { return Ok(default) };
    let number = found.as_u64().and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| bad(key, format!("is {found}; it must be a whole number")))
}

/// Renames the aliases that `transformers` accepts for a family's keys (`attribute_map` of its configuration). Null
/// counts as absent. Errors: `BadConfig` if both names are present with different values.
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

/// Errors: `BadConfig` if a key has a value other than the supported ones. Null counts as absent.
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

/// Errors: `BadConfig` if an extent is zero or exceeds `LARGEST_EXTENT`.
pub(super) fn check_extents(extents: &[(&str, usize)]) -> Result<(), GraphError> {
    for &(key, extent) in extents {
        if extent == 0 || extent > LARGEST_EXTENT {
            return Err(bad(key, format!("is {extent}; it must be between 1 and {LARGEST_EXTENT}")));
        }
    }
    Ok(())
}

/// Errors: `BadConfig` if there are no layers, or too many.
pub(super) fn check_layers(key: &str, layers: usize) -> Result<(), GraphError> {
    check_extents(&[(key, layers)])?;
    if layers > MOST_LAYERS {
        return Err(bad(key, format!("is {layers}; at most 1,000 layers are supported")));
    }
    Ok(())
}

/// Errors: `BadConfig` if a rate is not in [0, 1).
pub(super) fn check_rates(rates: &[(&str, f32)]) -> Result<(), GraphError> {
    match rates.iter().find(|(_, rate)| !(0.0..1.0).contains(rate)) {
        Some((key, rate)) => Err(bad(key, format!("is {rate}; it must be at least 0 and below 1"))),
        None => Ok(()),
    }
}

/// Errors: `BadConfig` if a number is not above zero.
pub(super) fn check_positive(numbers: &[(&str, f32)]) -> Result<(), GraphError> {
    match numbers.iter().find(|(_, x)| !(x.is_finite() && *x > 0.0)) {
        Some((key, x)) => Err(bad(key, format!("is {x}; it must be above 0"))),
        None => Ok(()),
    }
}

/// Deserializes a configuration. Errors: `BadConfig`.
pub(super) fn parse<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, GraphError> {
    serde_json::from_value(value).map_err(|e| bad("(file)", e.to_string()))
}

/// The text of a config.json: the keys of `config` and of `more`.
pub(super) fn to_json(config: &impl serde::Serialize, more: &Value) -> String {
    let mut value = serde_json::to_value(config).expect("a configuration is plain data");
    let map = value.as_object_mut().expect("a struct serializes to an object");
    map.extend(more.as_object().expect("an object literal").clone());
    serde_json::to_string_pretty(&value).expect("JSON values serialize")
}
