//! `adapter_config.json` of PEFT: reading and writing. The layers that have adapters, and their ranks, are read from
//! the tensors of the file next to it, since a pattern of names may have any form.

use crate::adaptable::{ADAPTER_PREFIX, MAGNITUDES, of_all_experts};
use crate::adapter_parameters::WRAPPED;
use crate::adapters::{Adapter, Adapters};
use crate::models::ModelConfig;
use plimsoll_units::patterns::is_named;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Larger ranks are damage: layers have no more inputs.
const MOST_RANK: usize = 1 << 16;

/// A key of `adapter_config.json` has a value that is not supported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{key}` {problem}")]
pub struct AdapterFileError {
    /// The key; `(file)` if the text is not an object.
    pub key: String,
    /// What is wrong with it.
    pub problem: String,
}

/// The end of the name of a frozen weight in a file of adapters, which has an adapter itself.
pub const BASE_COPY: &str = ".base_layer.weight";

fn bad(key: &str, problem: impl Into<String>) -> AdapterFileError {
    AdapterFileError { key: key.to_owned(), problem: problem.into() }
}

/// Keys that change what an adapter computes and have no counterpart here, with the values that leave it unchanged.
const CHANGES: &[(&str, &[&str])] = &[
    ("peft_type", &["\"LORA\""]),
    ("bias", &["\"none\""]),
    ("lora_bias", &["false"]),
    ("use_qalora", &["false"]),
    ("use_bdlora", &["false"]),
    ("alora_invocation_tokens", &[]),
    ("trainable_token_indices", &[]),
    ("layer_replication", &[]),
    ("velora_config", &[]),
    ("arrow_config", &[]),
    ("kasa_config", &[]),
    ("monteclora_config", &[]),
    ("megatron_config", &[]),
];

/// The name in a pattern of names, and the alpha of the layers that it matches. Errors: it is no name, or the alpha no number.
fn alpha_of<'p>(pattern: &'p str, alpha: &Value) -> Result<(&'p str, f64), AdapterFileError> {
    let name = plain(pattern);
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || "._*".contains(c));
    let found = alpha.as_f64().filter(|_| is_name).map(|alpha| (name, alpha));
    found.ok_or_else(|| bad("alpha_pattern", format!("has `{pattern}`: {alpha}, not the name of a layer and a number")))
}

/// The name in a pattern of names. PEFT writes those of fused experts as expressions.
fn plain(pattern: &str) -> &str {
    pattern.strip_prefix(r".*\.").unwrap_or(pattern)
}

/// Settings of an `adapter_config.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterFile {
    keys: Map<String, Value>,
}

impl AdapterFile {
    /// Parses the text. Errors: it is not an object, or a key asks for another kind of adapter.
    pub fn from_json(text: &str) -> Result<Self, AdapterFileError> {
        let value = serde_json::from_str(text).map_err(|error| bad("(file)", format!("is not valid JSON: {error}")))?;
        let Value::Object(keys) = value else { return Err(bad("(file)", "is not an object")) };
        for (key, plain) in CHANGES {
            let found = keys.get(*key).filter(|value| !value.is_null()).map(Value::to_string);
            if let Some(found) = found.filter(|found| !plain.contains(&found.as_str())) {
                return Err(bad(key, format!("is {found}, which is not supported; only LoRA and DoRA adapters are")));
            }
        }
        Ok(Self { keys })
    }

    /// The name or path of the model that the adapters belong to.
    pub fn base(&self) -> Option<&str> {
        self.keys.get("base_model_name_or_path")?.as_str()
    }

    /// The adapters, by the names and shapes of the tensors in their file. Errors: a key lacks or has an impossible value,
    /// or there are no adapters.
    pub fn adapters<'t>(
        &self,
        tensors: impl IntoIterator<Item = (&'t str, &'t [usize])>,
    ) -> Result<Adapters, AdapterFileError> {
        let dropout = self.number("lora_dropout")?.unwrap_or(0.0);
        if !(0.0..1.0).contains(&dropout) {
            return Err(bad("lora_dropout", format!("is {dropout}; it must be from 0 to less than 1")));
        }
        let alpha = self.number("lora_alpha")?.ok_or_else(|| bad("lora_alpha", "is missing"))?;
        let alphas = self.alphas()?;
        let is_stabilized = self.keys.get("use_rslora").and_then(Value::as_bool).unwrap_or(false);
        let has_magnitudes = self.keys.get("use_dora").and_then(Value::as_bool).unwrap_or(false);
        let mut adapters = Adapters { dropout: dropout as f32, has_magnitudes, ..Adapters::default() };
        for (name, shape) in tensors {
            let Some(path) = name.strip_prefix(ADAPTER_PREFIX) else {
                return Err(bad("(file)", format!("has the tensor `{name}`, which is not one of an adapter")));
            };
            // PEFT adds the frozen weights of embeddings that have adapters.
            if path.ends_with(BASE_COPY) {
                continue;
            }
            let of_embedding = || path.strip_suffix(".lora_embedding_A");
            if let Some(module) = path.strip_suffix(".lora_A.weight").or_else(of_embedding) {
                let no_rank =
                    || bad("(file)", format!("has `{name}` of {shape:?}, which is no rank and number of inputs"));
                let &[rows, _] = shape else { return Err(no_rank()) };
                let stacked = self.stacked(module)?;
                let (module, rank) = match &stacked {
                    Some((module, rank)) => (module.as_str(), *rank),
                    None => (module, rows),
                };
                if !(1..=MOST_RANK).contains(&rank) {
                    return Err(no_rank());
                }
                let alpha = alphas.iter().find(|(key, _)| is_named(module, key)).map_or(alpha, |(_, alpha)| *alpha);
                let over = if is_stabilized { (rank as f64).sqrt() } else { rank as f64 };
                let scale = (alpha / over) as f32;
                if !scale.is_finite() {
                    return Err(bad("lora_alpha", format!("is {alpha:e}, which is too large")));
                }
                adapters.layers.insert(of_all_experts(module), Adapter { rank, scale });
            } else if path.ends_with(MAGNITUDES) {
                if !adapters.has_magnitudes {
                    return Err(bad("use_dora", format!("is not true, but the file has `{name}`")));
                }
            } else if !path.ends_with(".lora_B.weight") && !path.ends_with(".lora_embedding_B") {
                adapters.saved.insert(path.to_owned());
            }
        }
        match adapters.layers.is_empty() {
            true => Err(bad("(file)", "has no tensors of adapters")),
            false => Ok(adapters),
        }
    }

    /// The layer of stacked experts and its rank, if a matrix of this module belongs to one: PEFT wraps the list of experts once
    /// for each of its tensors, in the order of their names with the first one outermost.
    fn stacked(&self, module: &str) -> Result<Option<(String, usize)>, AdapterFileError> {
        let list = module.trim_end_matches(WRAPPED);
        let targets = self.keys.get("target_parameters").and_then(Value::as_array);
        let targets = targets.into_iter().flatten().filter_map(Value::as_str);
        let own = targets.filter_map(|target| match target.rsplit_once('.') {
            Some((path, name)) => is_named(list, path).then_some(name),
            None => list.ends_with(".experts").then_some(target),
        });
        let own = own.collect::<BTreeSet<_>>();
        let depth = (module.len() - list.len()) / WRAPPED.len();
        let Some(name) = own.into_iter().nth(depth) else { return Ok(None) };
        let module = format!("{list}.{name}");
        let ranks = self.keys.get("rank_pattern").and_then(Value::as_object);
        let of_pattern = ranks.into_iter().flatten().find(|(key, _)| is_named(&module, plain(key)));
        let rank = of_pattern.map(|(_, rank)| rank).or_else(|| self.keys.get("r"));
        match rank.and_then(Value::as_u64).and_then(|rank| usize::try_from(rank).ok()).filter(|rank| *rank > 0) {
            Some(rank) => Ok(Some((module, rank))),
            None => Err(bad("r", "is not the rank of the adapters")),
        }
    }

    fn number(&self, key: &str) -> Result<Option<f64>, AdapterFileError> {
        match self.keys.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or_else(|| bad(key, format!("is {value}, not a number"))),
        }
    }

    /// Alphas of single layers.
    fn alphas(&self) -> Result<BTreeMap<&str, f64>, AdapterFileError> {
        let Some(Value::Object(patterns)) = self.keys.get("alpha_pattern") else { return Ok(BTreeMap::new()) };
        patterns.iter().map(|(pattern, value)| alpha_of(pattern, value)).collect()
    }
}

impl Adapters {
    /// The `adapter_config.json` that PEFT reads. `base`: the name or path of the model's weights.
    pub fn to_json(&self, model: &ModelConfig, base: Option<&str>) -> String {
        let most_frequent = |values: BTreeMap<u64, usize>| values.into_iter().max_by_key(|(_, count)| *count);
        let mut ranks = BTreeMap::new();
        let mut alphas = BTreeMap::new();
        let alpha_of = |adapter: &Adapter| f64::from(adapter.scale) * adapter.rank as f64;
        for adapter in self.layers.values() {
            *ranks.entry(adapter.rank as u64).or_insert(0) += 1;
            *alphas.entry(alpha_of(adapter).to_bits()).or_insert(0) += 1;
        }
        let rank = most_frequent(ranks).map_or(0, |(rank, _)| rank);
        let alpha = most_frequent(alphas).map_or(0.0, |(bits, _)| f64::from_bits(bits));
        let others = |value: fn(&Adapter) -> f64, usual: f64| {
            let differs = |(_, adapter): &(_, &Adapter)| value(adapter) != usual;
            let number = |value: f64| if value.fract() == 0.0 { json!(value as u64) } else { json!(value) };
            let other = self.layers.iter().filter(differs);
            other.map(|(name, adapter)| (name.clone(), number(value(adapter)))).collect::<Map<_, _>>()
        };
        let rank_pattern = others(|adapter| adapter.rank as f64, rank as f64);
        let alpha_pattern = others(|adapter| f64::from(adapter.scale) * adapter.rank as f64, alpha);
        let module = |name: &String| name.rsplit_once('.').map_or(name.clone(), |(module, _)| module.to_owned());
        let saved = self.saved.iter().map(module).collect::<BTreeSet<_>>();
        let task = if model.decoder_start().is_some() { "SEQ_2_SEQ_LM" } else { "CAUSAL_LM" };
        let stacked = self.stacked(model);
        let config = json!({
            "peft_type": "LORA",
            "task_type": task,
            "base_model_name_or_path": base,
            "inference_mode": true,
            "r": rank,
            "lora_alpha": if alpha.fract() == 0.0 { json!(alpha as u64) } else { json!(alpha) },
            "lora_dropout": self.dropout,
            "target_modules": self.target_modules(model),
            "target_parameters": if stacked.is_empty() { Value::Null } else { json!(stacked) },
            "rank_pattern": rank_pattern,
            "alpha_pattern": alpha_pattern,
            "modules_to_save": if saved.is_empty() { Value::Null } else { json!(saved) },
            "bias": "none",
            "fan_in_fan_out": model.model_type() == "gpt2",
            "use_rslora": false,
            "use_dora": self.has_magnitudes,
        });
        let mut text = serde_json::to_string_pretty(&config).expect("plain data");
        text.push('\n');
        text
    }

    /// The names of adapted tensors of stacked experts, which are no modules in PEFT.
    fn stacked(&self, model: &ModelConfig) -> Vec<String> {
        let known = [model.adaptable_layers(), model.fused_layers()].into_iter().flat_map(Result::unwrap_or_default);
        let stacked = known.filter(|layer| layer.is_stacked() && self.layers.contains_key(&layer.module));
        stacked.map(|layer| layer.module).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Names that match the adapters' layers and no other: the last parts of their names if these do.
    fn target_modules(&self, model: &ModelConfig) -> Vec<String> {
        let end = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
        let known = model.adaptable_layers().unwrap_or_default().into_iter().filter(|layer| !layer.is_stacked());
        let known = known.collect::<Vec<_>>();
        let own = known.iter().filter(|layer| self.layers.contains_key(&layer.module));
        let ends = own.clone().map(|layer| end(&layer.module)).collect::<BTreeSet<_>>();
        let is_exact = known.iter().all(|layer| {
            self.layers.contains_key(&layer.module) || !ends.iter().any(|end| is_named(&layer.module, end))
        });
        if is_exact {
            return ends.into_iter().collect();
        }
        own.flat_map(|layer| layer.in_files()).map(|layer| layer.module).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYER: &str = "base_model.model.layers.0.q_proj.lora_A.weight";

    fn read(alpha: &str, shape: &[usize]) -> Result<Adapters, AdapterFileError> {
        let file = AdapterFile::from_json(&format!(r#"{{"peft_type": "LORA", "lora_alpha": {alpha}}}"#))?;
        file.adapters([(LAYER, shape)])
    }

    #[test]
    fn impossible_ranks_and_alphas_are_refused() {
        let read_whole = read("6", &[3, 8]).expect("an adapter");
        assert_eq!(read_whole.layers["layers.0.q_proj"], Adapter { rank: 3, scale: 2.0 });
        for shape in [&[0, 8][..], &[3], &[], &[3, 8, 1], &[usize::MAX, 8]] {
            assert_eq!(read("6", shape).map_err(|error| error.key), Err("(file)".to_owned()), "{shape:?}");
        }
        for alpha in ["1e300", "\"x\"", "[]"] {
            assert_eq!(read(alpha, &[3, 8]).map_err(|error| error.key), Err("lora_alpha".to_owned()), "{alpha}");
        }
    }
}
