//! Reads and writes Llama's config.json, including the keys of each family that shares its format.

use super::config::{Dialect, LlamaConfig, Own, Variant};
use super::{mistral, presets, qwen2, rope};
use crate::GraphError;
use crate::models::Family;
use crate::models::keys::{
    self, bad, check_extents, check_layers, check_positive, check_rates, parse, refuse_others, require_whole,
};
use serde_json::{Value, json};

/// The window in `transformers` if layers have one and the file has no `sliding_window`.
const DEFAULT_WINDOW: usize = 4096;

impl Variant {
    const ALL: [Self; 3] = [Self::Llama, Self::Mistral, Self::Qwen2];

    pub(super) fn dialect(self) -> &'static Dialect {
        match self {
            Self::Llama => &super::DIALECT,
            Self::Mistral => &mistral::DIALECT,
            Self::Qwen2 => &qwen2::DIALECT,
        }
    }
}

impl Family for LlamaConfig {
    fn preset_names() -> impl Iterator<Item = &'static str> {
        presets::names()
    }

    fn preset(name: &str) -> Option<Self> {
        presets::find(name)
    }

    fn from_value(mut value: Value) -> Result<Self, GraphError> {
        refuse_others(
            &value,
            &[
                ("hidden_act", &[json!("silu"), json!("swish")]),
                ("pretraining_tp", &[json!(1)]),
                ("partial_rotary_factor", &[json!(1.0)]),
                ("quantization_config", &[]),
            ],
        )?;
        let needed = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"];
        require_whole(&value, &[&needed[..], &["max_position_embeddings"]].concat())?;
        let model_type = value["model_type"].as_str().unwrap_or_default();
        let variant = Variant::ALL.into_iter().find(|variant| variant.dialect().model_type == model_type);
        let variant = variant.ok_or_else(|| bad("model_type", format!("is `{model_type}`")))?;
        let mut own = Own::default();
        (variant.dialect().read)(&value, &mut own)?;
        let (theta, scaling) = rope::read(&value)?;
        let heads = value["num_attention_heads"].as_u64().unwrap_or(1).max(1);
        let map = value.as_object_mut().ok_or_else(|| bad("(file)", "is not an object"))?;
        // `null` means no window.
        if own.sliding_layers.is_some() {
            map.entry("sliding_window").or_insert(json!(DEFAULT_WINDOW));
        } else {
            map.remove("sliding_window");
        }
        map.extend(theta.map(|theta| ("rope_theta".into(), json!(theta))));
        map.retain(|_, value| !value.is_null());
        map.entry("num_key_value_heads").or_insert(json!(heads));
        if !map.contains_key("head_dim") {
            let width = map["hidden_size"].as_u64().unwrap_or(0);
            if !width.is_multiple_of(heads) {
                let problem =
                    format!("is {heads}, which does not divide hidden_size = {width}, and there is no head_dim");
                return Err(bad("num_attention_heads", problem));
            }
            map.insert("head_dim".into(), json!(width / heads));
        }
        let config: Self = parse(value)?;
        let Own { qkv_bias, output_bias, mlp_bias, sliding_layers } = own;
        let sliding_layers = sliding_layers.unwrap_or_default();
        let config = Self { variant, qkv_bias, output_bias, mlp_bias, sliding_layers, scaling, ..config };
        config.validate()?;
        Ok(config)
    }

    fn to_json(&self) -> String {
        let Dialect { model_type, class, write, .. } = self.variant.dialect();
        let mut more = json!({
            "model_type": model_type, "architectures": [class], "hidden_act": "silu", "torch_dtype": "float32",
            "rope_scaling": rope::write(self.scaling), "attention_bias": self.output_bias, "mlp_bias": self.mlp_bias,
            "use_sliding_window": false,
        });
        write(self, more.as_object_mut().expect("an object literal"));
        keys::to_json(self, &more)
    }

    fn validate(&self) -> Result<(), GraphError> {
        check_layers("num_hidden_layers", self.num_hidden_layers)?;
        check_extents(&[
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("max_position_embeddings", self.max_position_embeddings),
            ("sliding_window", self.sliding_window.unwrap_or(1)),
        ])?;
        check_extents(&[("head_dim", self.num_attention_heads * self.head_dim)])?;
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            let (heads, kv_heads) = (self.num_attention_heads, self.num_key_value_heads);
            let problem = format!("is {kv_heads}, which does not divide num_attention_heads = {heads}");
            return Err(bad("num_key_value_heads", problem));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(bad("head_dim", format!("is {}; rotary positions need an even number", self.head_dim)));
        }
        check_rates(&[("attention_dropout", self.attention_dropout)])?;
        check_positive(&[
            ("rms_norm_eps", self.rms_norm_eps),
            ("rope_theta", self.rope_theta),
            ("initializer_range", self.initializer_range),
        ])
    }

    fn model_type(&self) -> &'static str {
        self.variant.dialect().model_type
    }

    fn set_max_positions(&mut self, positions: usize) {
        self.max_position_embeddings = positions;
    }

    fn set_vocab_size(&mut self, vocab_size: usize) {
        self.vocab_size = vocab_size;
    }

    fn set_dropout(&mut self, rate: f32) {
        self.attention_dropout = rate;
    }
}
