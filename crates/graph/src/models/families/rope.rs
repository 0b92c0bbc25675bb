//! The keys of rotary positions in a config.json.

use super::reader::Reader;
use crate::GraphError;
use crate::models::keys::{LARGEST_EXTENT, bad, refuse_others};
use crate::ops::RopeScaling;
use serde_json::{Value, json};

/// The base and the scaling of all layers: from `rope_parameters` in newer files, from `rope_theta` and `rope_scaling` in
/// older ones. Errors: `BadConfig`.
pub(super) fn read(keys: &mut Reader<'_>) -> Result<(f64, RopeScaling), GraphError> {
    let positions = keys.in_file("max_position_embeddings").and_then(Value::as_u64);
    let theta = f64::from(keys.number("rope_theta")?);
    match keys.in_file("rope_parameters") {
        Some(found) => parse("rope_parameters", found, theta, positions),
        None => parse("rope_scaling", keys.in_file("rope_scaling").unwrap_or(&Value::Null), theta, positions),
    }
}

/// The same from the part of `rope_parameters` for one kind of layers. Errors: `BadConfig`.
pub(super) fn of_layers(found: &Value, theta: f64) -> Result<(f64, RopeScaling), GraphError> {
    parse("rope_parameters", found, theta, None)
}

/// `theta`: the base if `found` has none. `positions`: the number of positions in pretraining, if `found` has none.
fn parse(key: &str, found: &Value, theta: f64, positions: Option<u64>) -> Result<(f64, RopeScaling), GraphError> {
    if found.is_null() {
        return Ok((theta, RopeScaling::None));
    }
    let number = |name: &str| {
        let number = found.get(name).and_then(Value::as_f64).filter(|x| x.is_finite() && *x > 0.0);
        number.map(|x| x as f32).ok_or_else(|| bad(key, format!("needs a number above zero under `{name}`")))
    };
    let optional = |name: &str, default: f32| match found.get(name).filter(|v| !v.is_null()) {
        Some(_) => number(name),
        None => Ok(default),
    };
    let original = |default: Option<u64>| {
        let key_of = "original_max_position_embeddings";
        let positions = found.get(key_of).filter(|v| !v.is_null()).map_or(default, Value::as_u64);
        let sensible = positions.and_then(|p| usize::try_from(p).ok()).filter(|p| (1..=LARGEST_EXTENT).contains(p));
        sensible.ok_or_else(|| bad(key, format!("needs a whole number above zero under `{key_of}`")))
    };
    let kind = found.get("rope_type").or_else(|| found.get("type")).and_then(Value::as_str).unwrap_or("default");
    let scaling = match kind {
        // Dynamic scaling changes nothing until a sequence exceeds the positions, which never happens here.
        "default" | "dynamic" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: number("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: number("factor")?,
            low_freq_factor: number("low_freq_factor")?,
            high_freq_factor: number("high_freq_factor")?,
            original_max_positions: original(None)?,
        },
        "yarn" => RopeScaling::Yarn {
            factor: number("factor")?,
            beta_fast: optional("beta_fast", 32.0)?,
            beta_slow: optional("beta_slow", 1.0)?,
            original_max_positions: original(positions)?,
            attention_factor: match found.get("attention_factor").filter(|v| !v.is_null()) {
                Some(_) => Some(number("attention_factor")?),
                None => None,
            },
        },
        other => {
            return Err(bad(
                key,
                format!("asks for `{other}`; default, linear, dynamic, llama3 and yarn are supported"),
            ));
        }
    };
    if kind == "yarn" {
        refuse_others(found, &[("mscale", &[]), ("mscale_all_dim", &[]), ("truncate", &[json!(true)])])?;
    }
    let theta = match found.get("rope_theta").filter(|v| !v.is_null()) {
        Some(_) => f64::from(number("rope_theta")?),
        None => theta,
    };
    Ok((theta, scaling))
}

/// The value of `rope_scaling`; null for no scaling.
pub(super) fn write(scaling: &RopeScaling) -> Value {
    match *scaling {
        RopeScaling::None => Value::Null,
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_max_positions,
        }),
        RopeScaling::Yarn { factor, beta_fast, beta_slow, original_max_positions, attention_factor } => json!({
            "rope_type": "yarn", "factor": factor, "beta_fast": beta_fast, "beta_slow": beta_slow,
            "original_max_position_embeddings": original_max_positions,
            "attention_factor": attention_factor,
        }),
    }
}
