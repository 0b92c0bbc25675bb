//! The keys of rotary positions in a config.json.

use super::reader::Reader;
use crate::GraphError;
use crate::models::ContextScaling;
use crate::models::keys::{LARGEST_EXTENT, bad};
use crate::ops::RopeScaling;
use serde_json::{Map, Value, json};

/// Rotary positions of a config.json.
pub(super) struct Rope {
    /// The base.
    pub(super) theta: f64,
    /// The scaling of frequencies.
    pub(super) scaling: ContextScaling,
    /// The share of a head's channels that are rotated.
    pub(super) rotated: f64,
}

/// Reads `rope_parameters` of newer files, or `rope_theta` and `rope_scaling` of older ones. Errors: `BadConfig`.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<Rope, GraphError> {
    let theta = f64::from(reader.number("rope_theta")?);
    let (key, found) = match reader.in_file("rope_parameters") {
        Some(found) => ("rope_parameters", found),
        None => ("rope_scaling", reader.in_file("rope_scaling").unwrap_or(&Value::Null)),
    };
    Keys { config: reader.file(), key, found }.rope(theta)
}

/// The same from the part of `rope_parameters` for one kind of layers; `theta`: the base if it has none.
/// Errors: `BadConfig`.
pub(super) fn of_layers(reader: &Reader<'_>, found: &Value, theta: f64) -> Result<Rope, GraphError> {
    Keys { config: reader.file(), key: "rope_parameters", found }.rope(theta)
}

/// The keys of one kind of rotary positions, and the file that they are in.
struct Keys<'a> {
    config: &'a Map<String, Value>,
    /// The name of `found`.
    key: &'static str,
    found: &'a Value,
}

impl Keys<'_> {
    fn rope(&self, theta: f64) -> Result<Rope, GraphError> {
        let theta = self.optional("rope_theta")?.map_or(theta, f64::from);
        let share = self.share()?;
        // This kind leaves the other channels in the rotation, with a frequency of zero.
        let rotated = if self.kind() == "proportional" { 1.0 } else { share };
        Ok(Rope { theta, scaling: self.scaling(share)?, rotated })
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.found.get(name).filter(|value| !value.is_null())
    }

    fn kind(&self) -> &str {
        self.get("rope_type").or_else(|| self.get("type")).and_then(Value::as_str).unwrap_or("default")
    }

    fn number(&self, name: &str) -> Result<f32, GraphError> {
        let number = self.get(name).and_then(above_zero);
        number.ok_or_else(|| bad(self.key, format!("needs a number above zero under `{name}`")))
    }

    fn optional(&self, name: &str) -> Result<Option<f32>, GraphError> {
        self.get(name).map(|_| self.number(name)).transpose()
    }

    fn numbers(&self, name: &str) -> Result<Vec<f32>, GraphError> {
        let list = self.get(name).and_then(Value::as_array).filter(|list| list.len() <= LARGEST_EXTENT);
        let numbers = list.and_then(|list| list.iter().map(above_zero).collect());
        numbers.ok_or_else(|| bad(self.key, format!("needs a list of numbers above zero under `{name}`")))
    }

    /// The number of positions in pretraining, from the same places as in `transformers`.
    fn original_positions(&self) -> Result<usize, GraphError> {
        let name = "original_max_position_embeddings";
        let own = self.config.get(name).filter(|value| !value.is_null()).or_else(|| self.get(name));
        let positions = own.or_else(|| self.config.get("max_position_embeddings")).and_then(Value::as_u64);
        let sensible = positions.and_then(|p| usize::try_from(p).ok()).filter(|p| (1..=LARGEST_EXTENT).contains(p));
        sensible.ok_or_else(|| bad(self.key, format!("needs a whole number above zero under `{name}`")))
    }

    /// The factor, which by default is the model's number of positions divided by that of pretraining.
    fn stretch(&self, original: usize) -> Result<f32, GraphError> {
        match (self.optional("factor")?, self.config.get("max_position_embeddings").and_then(Value::as_u64)) {
            (Some(factor), _) => Ok(factor),
            (None, Some(positions)) if positions > 0 => Ok((positions as f64 / original as f64) as f32),
            (None, _) => self.number("factor"),
        }
    }

    /// The part of a head's channels, or of its pairs, that is rotated.
    fn share(&self) -> Result<f64, GraphError> {
        let name = "partial_rotary_factor";
        let share = self.get(name).or_else(|| self.config.get(name).filter(|value| !value.is_null()));
        let share = share.map_or(Some(1.0), Value::as_f64).filter(|share| *share > 0.0 && *share <= 1.0);
        share.ok_or_else(|| bad(name, "must be a number above zero and at most 1"))
    }

    fn scaling(&self, share: f64) -> Result<ContextScaling, GraphError> {
        let scaling = match self.kind() {
            // Dynamic scaling changes nothing until a sequence exceeds the positions, which never happens here.
            "default" | "dynamic" => RopeScaling::None,
            "linear" => RopeScaling::Linear { factor: self.number("factor")? },
            "llama3" => RopeScaling::Llama3 {
                factor: self.number("factor")?,
                low_freq_factor: self.number("low_freq_factor")?,
                high_freq_factor: self.number("high_freq_factor")?,
                original_max_positions: self.original_positions()?,
            },
            "yarn" => self.yarn()?,
            // The second is the name in older files of Phi-3.
            "longrope" | "su" => return self.longrope(),
            "proportional" => RopeScaling::Proportional { factor: self.optional("factor")?.unwrap_or(1.0), share },
            other => {
                let supported = "default, linear, dynamic, llama3, yarn, longrope and proportional";
                return Err(bad(self.key, format!("asks for `{other}`; {supported} are supported")));
            }
        };
        Ok(scaling.into())
    }

    fn yarn(&self) -> Result<RopeScaling, GraphError> {
        let original_max_positions = self.original_positions()?;
        let factor = self.stretch(original_max_positions)?;
        let scales = [self.optional("mscale")?, self.optional("mscale_all_dim")?];
        let attention_factor = match (self.optional("attention_factor")?, scales) {
            (Some(factor), _) => Some(factor),
            (None, [Some(scale), Some(of_all)]) if factor > 1.0 => {
                let of = |scale: f32| 0.1 * f64::from(scale) * f64::from(factor).ln() + 1.0;
                Some((of(scale) / of(of_all)) as f32)
            }
            (None, _) => None,
        };
        let truncate = match self.get("truncate") {
            None => true,
            Some(Value::Bool(truncate)) => *truncate,
            Some(_) => return Err(bad(self.key, "needs true or false under `truncate`")),
        };
        let beta_fast = self.optional("beta_fast")?.unwrap_or(32.0);
        let beta_slow = self.optional("beta_slow")?.unwrap_or(1.0);
        Ok(RopeScaling::Yarn { factor, beta_fast, beta_slow, original_max_positions, attention_factor, truncate })
    }

    fn longrope(&self) -> Result<ContextScaling, GraphError> {
        let original = self.original_positions()?;
        let factor = f64::from(self.stretch(original)?);
        let attention_factor = match self.optional("attention_factor")? {
            Some(given) => given,
            None if factor <= 1.0 => 1.0,
            None => (1.0 + factor.ln() / (original.max(2) as f64).ln()).sqrt() as f32,
        };
        let scaling = |name| Ok(RopeScaling::LongRope { factors: self.numbers(name)?, attention_factor });
        Ok(ContextScaling { scaling: scaling("short_factor")?, longer: Some((original, scaling("long_factor")?)) })
    }
}

fn above_zero(value: &Value) -> Option<f32> {
    value.as_f64().map(|number| number as f32).filter(|number| number.is_finite() && *number > 0.0)
}

/// The value of `rope_scaling`; null for no scaling.
pub(super) fn write(scaling: &ContextScaling) -> Value {
    match &scaling.scaling {
        RopeScaling::None => Value::Null,
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_max_positions,
        }),
        RopeScaling::Yarn { factor, beta_fast, beta_slow, original_max_positions, attention_factor, truncate } => {
            json!({
                "rope_type": "yarn", "factor": factor, "beta_fast": beta_fast, "beta_slow": beta_slow,
                "original_max_position_embeddings": original_max_positions,
                "attention_factor": attention_factor, "truncate": truncate,
            })
        }
        RopeScaling::LongRope { factors, attention_factor } => {
            let (original, long) = match &scaling.longer {
                Some((original, RopeScaling::LongRope { factors, .. })) => (Some(original), factors),
                _ => (None, factors),
            };
            json!({
                "rope_type": "longrope", "short_factor": factors, "long_factor": long,
                "original_max_position_embeddings": original, "attention_factor": attention_factor,
            })
        }
        RopeScaling::Proportional { factor, share } => {
            json!({"rope_type": "proportional", "factor": factor, "partial_rotary_factor": share})
        }
    }
}
