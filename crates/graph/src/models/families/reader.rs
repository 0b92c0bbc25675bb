//! Reads the keys of a config.json, and records each with the value that applies: the file's or the default.

use crate::GraphError;
use crate::models::keys::{LARGEST_EXTENT, MOST_LAYERS, bad};
use serde_json::{Map, Value, json};

/// The keys of a config.json while a family reads them.
pub(super) struct Reader<'f> {
    file: &'f Map<String, Value>,
    /// The values of `transformers` for keys that a file may omit.
    defaults: Map<String, Value>,
    /// The keys that were read, with the values that apply.
    pub(super) read: Map<String, Value>,
    /// Keys that were read and that the file lacks.
    pub(super) assumed: Vec<String>,
    /// Other names of keys that were read.
    aliases: Vec<String>,
}

/// Keys that change what a model computes, with the values that change nothing. A file that has another value is
/// refused if its family does not read the key.
const CHANGES: &[(&str, &[&str])] = &[
    ("add_cross_attention", &["false"]),
    ("alibi", &["false"]),
    ("attention_bias", &["false"]),
    ("attention_chunk_size", &[]),
    ("attention_multiplier", &[]),
    ("attn_logit_softcapping", &[]),
    ("clip_qkv", &[]),
    ("embedding_multiplier", &["1.0", "1"]),
    ("final_logit_softcapping", &[]),
    ("first_k_dense_replace", &[]),
    ("is_encoder_decoder", &["false"]),
    ("kv_lora_rank", &[]),
    ("linear_num_value_heads", &[]),
    ("logit_scale", &["1.0", "1"]),
    ("logits_scaling", &["1.0", "1"]),
    ("mlp_bias", &["false"]),
    ("n_routed_experts", &["0"]),
    ("no_rope_layers", &[]),
    ("num_experts", &["0"]),
    ("num_local_experts", &["0"]),
    ("parallel_attn", &["false"]),
    ("partial_rotary_factor", &["1.0", "1"]),
    ("pretraining_tp", &["1"]),
    ("q_lora_rank", &[]),
    ("qk_layernorm", &["false"]),
    ("qk_norm", &["false"]),
    ("query_pre_attn_scalar", &[]),
    ("residual_multiplier", &["1.0", "1"]),
    ("use_bidirectional_attention", &["false"]),
    ("use_qk_norm", &["false"]),
    ("use_qkv_bias", &["false"]),
];

impl<'f> Reader<'f> {
    /// `defaults`: an object.
    pub(super) fn new(file: &'f Map<String, Value>, defaults: Value) -> Self {
        let Value::Object(defaults) = defaults else { unreachable!("defaults are an object") };
        Self { file, defaults, read: Map::new(), assumed: Vec::new(), aliases: Vec::new() }
    }

    /// The whole file.
    pub(super) fn file(&self) -> &'f Map<String, Value> {
        self.file
    }

    /// The value in the file, `None` if it is absent or null.
    pub(super) fn in_file(&self, key: &str) -> Option<&'f Value> {
        self.file.get(key).filter(|value| !value.is_null())
    }

    /// Records the value that applies.
    pub(super) fn record(&mut self, key: &str, value: impl Into<Value>) {
        self.read.insert(key.to_owned(), value.into());
    }

    /// The value that applies: the file's, or the default if the file has none; `None` if there is neither.
    fn value(&mut self, key: &str) -> Option<Value> {
        if let Some(value) = self.in_file(key) {
            return Some(value.clone());
        }
        let default = self.defaults.get(key).filter(|value| !value.is_null()).cloned();
        if default.is_some() {
            self.assumed.push(key.to_owned());
        }
        default
    }

    /// A whole number from 1 to [`LARGEST_EXTENT`]. Errors: `BadConfig`, also if there is none.
    pub(super) fn size(&mut self, key: &str) -> Result<usize, GraphError> {
        self.optional_size(key)?.ok_or_else(|| bad(key, "is missing"))
    }

    /// The same under a key or its alias. Errors: `BadConfig`, also if both have values that differ.
    pub(super) fn size_under(&mut self, key: &str, alias: &str) -> Result<usize, GraphError> {
        let size = match (self.in_file(key), self.in_file(alias)) {
            (Some(own), Some(other)) if own != other => {
                return Err(bad(alias, format!("is {other}, which contradicts {key} = {own}")));
            }
            (None, Some(_)) => self.size(alias)?,
            _ => self.size(key)?,
        };
        // `transformers` reads both names.
        self.read.remove(alias);
        self.record(key, size);
        self.aliases.push(alias.to_owned());
        Ok(size)
    }

    /// The same; `None` if there is none.
    pub(super) fn optional_size(&mut self, key: &str) -> Result<Option<usize>, GraphError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let number =
            value.as_u64().ok_or_else(|| bad(key, format!("is {value}; it must be a whole number above 0")))?;
        let size = usize::try_from(number).ok().filter(|size| (1..=LARGEST_EXTENT).contains(size));
        let size = size.ok_or_else(|| bad(key, format!("is {number}; it must be between 1 and {LARGEST_EXTENT}")))?;
        self.record(key, size);
        Ok(Some(size))
    }

    /// The same, where null turns a feature off and an absent key means `default`.
    pub(super) fn size_or_off(&mut self, key: &str, default: usize) -> Result<Option<usize>, GraphError> {
        if self.file.get(key) == Some(&Value::Null) {
            self.record(key, Value::Null);
            return Ok(None);
        }
        self.defaults.insert(key.to_owned(), json!(default));
        self.optional_size(key)
    }

    /// The number of layers. Errors: `BadConfig` if there are too many.
    pub(super) fn layers(&mut self) -> Result<usize, GraphError> {
        let layers = self.size("num_hidden_layers")?;
        if layers > MOST_LAYERS {
            return Err(bad("num_hidden_layers", format!("is {layers}; at most 1,000 layers are supported")));
        }
        Ok(layers)
    }

    /// A number above 0. Errors: `BadConfig`, also if there is none.
    pub(super) fn number(&mut self, key: &str) -> Result<f32, GraphError> {
        self.optional_number(key)?.ok_or_else(|| bad(key, "is missing"))
    }

    /// The same; `None` if there is none, or if the file has null.
    pub(super) fn optional_number(&mut self, key: &str) -> Result<Option<f32>, GraphError> {
        if self.file.get(key) == Some(&Value::Null) {
            self.record(key, Value::Null);
            return Ok(None);
        }
        let Some(value) = self.value(key) else { return Ok(None) };
        let number = value.as_f64().filter(|number| (*number as f32).is_finite() && *number as f32 > 0.0);
        let number = number.ok_or_else(|| bad(key, format!("is {value}; it must be a number above 0")))?;
        // As the file has it: `transformers` refuses 12.0 for a whole number.
        self.record(key, value);
        Ok(Some(number as f32))
    }

    /// A rate in [0, 1); 0 if there is none. Errors: `BadConfig`.
    pub(super) fn rate(&mut self, key: &str) -> Result<f32, GraphError> {
        let value = self.value(key).unwrap_or_else(|| json!(0.0));
        let rate = value.as_f64().filter(|rate| (0.0..1.0).contains(rate) && (*rate as f32) < 1.0);
        let rate = rate.ok_or_else(|| bad(key, format!("is {value}; it must be at least 0 and below 1")))?;
        self.record(key, rate);
        Ok(rate as f32)
    }

    /// True or false; false if there is none. Errors: `BadConfig`.
    pub(super) fn flag(&mut self, key: &str) -> Result<bool, GraphError> {
        let value = self.value(key).unwrap_or(Value::Bool(false));
        let flag = value.as_bool().ok_or_else(|| bad(key, format!("is {value}; it must be true or false")))?;
        self.record(key, flag);
        Ok(flag)
    }

    /// One of these words, the first of which has the others as aliases. Errors: `BadConfig`.
    pub(super) fn word(&mut self, key: &str, accepted: &[&[&'static str]]) -> Result<&'static str, GraphError> {
        let Some(value) = self.value(key) else { return Err(bad(key, "is missing")) };
        let found = accepted.iter().find(|names| names.iter().any(|name| value == *name));
        let Some(names) = found else {
            let known = accepted.iter().map(|names| format!("\"{}\"", names[0])).collect::<Vec<_>>().join(" or ");
            return Err(bad(key, format!("is {value}; only {known} is supported")));
        };
        self.record(key, names[0]);
        Ok(names[0])
    }

    /// A list with a value per layer. Errors: `BadConfig`.
    pub(super) fn list(&self, key: &str, layers: usize) -> Result<Option<&'f Vec<Value>>, GraphError> {
        let Some(value) = self.in_file(key) else { return Ok(None) };
        let list = value.as_array().filter(|list| list.len() == layers);
        list.map(Some).ok_or_else(|| bad(key, format!("is {value}; it must have a value for each of {layers} layers")))
    }

    /// The keys of the file that change what a model computes and that were not read, with their values.
    pub(super) fn not_understood(&self) -> Vec<(&'static str, &'f Value)> {
        let is_read = |key: &str| self.read.contains_key(key) || self.aliases.iter().any(|alias| alias == key);
        let unread = CHANGES.iter().filter(|(key, _)| !is_read(key));
        let found = unread.filter_map(|(key, neutral)| {
            let value = self.in_file(key)?;
            let text = value.to_string();
            let is_neutral = neutral.contains(&text.as_str());
            (!is_neutral).then_some((*key, value))
        });
        found.collect()
    }
}
