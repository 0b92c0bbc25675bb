//! The keys of a file for the sizes of its model.
//! Source of the names: `Keys` of the package `gguf`, `constants.py`.

use crate::FileType;
use crate::architecture::{Architecture, keys_of};
use crate::value::{Metadata, Value};
use plimsoll_graph::models::description::{
    Attention, Decoder, Encoder, EncoderDecoder, FeedForward, NormFormula, RotaryPositions,
};
use plimsoll_graph::models::{Description, ModelConfig};
use plimsoll_graph::ops::RopeScaling;

/// ggml's version of its encodings of integers.
const QUANTIZATION_VERSION: u32 = 2;

/// Positions that T5's files name, although relative positions have no limit.
const T5_POSITIONS: usize = 512;

/// The keys of a model. `name`: for people.
pub(crate) fn of_model(architecture: &Architecture, model: &ModelConfig, name: &str, file: FileType) -> Metadata {
    let mut keys = Metadata::default();
    keys.put("general.architecture", architecture.name);
    keys.put("general.type", "model");
    keys.put("general.name", name);
    keys.put("general.file_type", file.code());
    if file.is_quantized() {
        keys.put("general.quantization_version", QUANTIZATION_VERSION);
    }
    let mut sizes = Sizes { architecture, config: keys_of(model), keys };
    match model.describe() {
        Description::Decoder(decoder) => sizes.decoder(&decoder),
        Description::EncoderDecoder(both) => sizes.encoder_decoder(&both, model.decoder_start()),
        Description::Encoder(encoder) => sizes.encoder(&encoder),
    }
    sizes.keys
}

struct Sizes<'a> {
    architecture: &'a Architecture,
    /// The keys of the config.json.
    config: serde_json::Value,
    keys: Metadata,
}

impl Sizes<'_> {
    fn put(&mut self, key: &str, value: impl Into<Value>) {
        self.keys.put(format!("{}.{key}", self.architecture.name), value);
    }

    /// The number under a key of the config.json.
    fn number(&self, key: &str) -> f32 {
        self.config[key].as_f64().unwrap_or_default() as f32
    }

    fn decoder(&mut self, model: &Decoder) {
        let blocks = &model.blocks;
        let attentions = || blocks.iter().map(|block| &block.attention);
        // llama.cpp ignores windows of other architectures, so that only shorter texts are right.
        let window = attentions().filter_map(|attention| attention.window).min();
        let ignored = window.filter(|_| !self.architecture.has_windows());
        let positions = model.max_positions.min(ignored.unwrap_or(usize::MAX));
        self.common(model.vocab_size, model.width, positions, blocks.len());
        let block = &blocks[0];
        self.attention(&block.attention);
        self.feed_forward(&block.feed_forward);
        self.epsilon(model.last_norm.formula, model.last_norm.epsilon);
        let rotary = |slides: bool| {
            let found =
                attentions().find(|attention| attention.window.is_some() == slides && attention.rotary.is_some());
            found.and_then(|attention| attention.rotary.as_ref())
        };
        if let Some(rotary) = rotary(false).or_else(|| rotary(true)) {
            self.rotary(rotary, model.max_positions);
        }
        if self.architecture.has_windows()
            && let Some(window) = window
        {
            self.put("attention.sliding_window", window);
            if self.architecture.name == "olmo2" {
                self.put(
                    "attention.sliding_window_pattern",
                    Value::Flags(attentions().map(|attention| attention.window.is_some()).collect()),
                );
            }
            if let Some(local) = rotary(true) {
                self.put("rope.freq_base_swa", local.base);
            }
        }
        if let Some(cap) = block.attention.cap {
            self.put("attn_logit_softcapping", cap);
        }
        if let Some(cap) = model.logit_cap {
            self.put("final_logit_softcapping", cap);
        }
        if self.architecture.name == "granite" {
            self.put("attention.scale", block.attention.scale);
            self.put("embedding_scale", model.embedding_scale.unwrap_or(1.0));
            self.put("residual_scale", block.residual_scale.unwrap_or(1.0));
            self.put("logit_scale", self.number("logits_scaling"));
        }
    }

    fn common(&mut self, vocab_size: usize, width: usize, positions: usize, blocks: usize) {
        self.put("vocab_size", vocab_size);
        self.put("context_length", positions);
        self.put("embedding_length", width);
        self.put("block_count", blocks);
    }

    fn attention(&mut self, attention: &Attention) {
        self.put("attention.head_count", attention.heads);
        self.put("attention.head_count_kv", attention.kv_heads);
        self.put("attention.key_length", attention.head_size);
        self.put("attention.value_length", attention.head_size);
    }

    fn feed_forward(&mut self, part: &FeedForward) {
        let inner = part.down.inputs;
        let Some(experts) = &part.experts else { return self.put("feed_forward_length", inner) };
        let dense = self.config["intermediate_size"].as_u64().map_or(inner, |inner| inner as usize);
        self.put("feed_forward_length", dense);
        self.put("expert_count", experts.count);
        self.put("expert_used_count", experts.chosen);
        if self.architecture.name == "qwen3moe" || self.architecture.is_gpt_oss() {
            self.put("expert_feed_forward_length", inner);
        }
    }

    fn epsilon(&mut self, formula: NormFormula, epsilon: f32) {
        let kind = if matches!(formula, NormFormula::Layer { .. }) { "" } else { "_rms" };
        self.put(&format!("attention.layer_norm{kind}_epsilon"), epsilon);
    }

    fn rotary(&mut self, rotary: &RotaryPositions, positions: usize) {
        self.put("rope.dimension_count", rotary.rotated);
        self.put("rope.freq_base", rotary.base);
        match &rotary.scaling.scaling {
            RopeScaling::Linear { factor } => {
                self.put("rope.scaling.type", "linear");
                self.put("rope.scaling.factor", *factor);
            }
            &RopeScaling::Yarn { factor, beta_fast, beta_slow, original_max_positions, attention_factor, .. } => {
                self.put("rope.scaling.type", "yarn");
                self.put("rope.scaling.factor", factor);
                self.put("rope.scaling.original_context_length", original_max_positions);
                self.put("rope.scaling.yarn_beta_fast", beta_fast);
                self.put("rope.scaling.yarn_beta_slow", beta_slow);
                if let Some(given) = attention_factor {
                    // llama.cpp multiplies it by the usual factor.
                    self.put("rope.scaling.attn_factor", given / (0.1 * factor.ln() + 1.0));
                }
            }
            &RopeScaling::LongRope { attention_factor, .. } => {
                let original = rotary.scaling.longer.as_ref().map_or(positions, |(original, _)| *original);
                self.put("rope.scaling.original_context_length", original);
                self.put("rope.scaling.attn_factor", attention_factor);
            }
            _ => {}
        }
    }

    fn encoder_decoder(&mut self, model: &EncoderDecoder, start: Option<u32>) {
        self.common(model.vocab_size, model.width, T5_POSITIONS, model.encoder.layers);
        self.put("decoder_block_count", model.decoder.layers);
        self.attention(&model.encoder.own);
        self.feed_forward(&model.encoder.feed_forward);
        self.put("attention.relative_buckets_count", model.encoder.bias_table.rows);
        self.put("attention.layer_norm_rms_epsilon", model.encoder.norm.epsilon);
        self.put("attention.layer_norm_epsilon", model.encoder.norm.epsilon);
        if let Some(start) = start {
            self.put("decoder_start_token_id", start);
        }
    }

    fn encoder(&mut self, model: &Encoder) {
        self.common(model.vocab_size, model.width, model.max_positions, model.blocks.len());
        let block = &model.blocks[0];
        self.attention(&block.attention);
        self.feed_forward(&block.feed_forward);
        self.epsilon(model.embedding_norm.formula, model.embedding_norm.epsilon);
        self.put("attention.causal", false);
        let rotary = |slides: bool| {
            let mut all = model.blocks.iter().map(|block| &block.attention);
            all.find(|attention| attention.window.is_some() == slides)?.rotary.as_ref()
        };
        if let Some(rotary) = rotary(false) {
            self.rotary(rotary, model.max_positions);
            self.put("attention.sliding_window", self.number("local_attention") as usize);
            self.put("attention.sliding_window_pattern", self.number("global_attn_every_n_layers") as usize);
            self.put("rope.scaling.type", "none");
        }
        if let Some(rotary) = rotary(true) {
            self.put("rope.freq_base_swa", rotary.base);
        }
        if let Some(types) = model.token_types {
            self.keys.put("tokenizer.ggml.token_type_count", types.rows);
        }
    }
}
