//! T5, v1.1 and FLAN too: an encoder and a decoder that attends to it, relative positions, RMSNorm, no biases.
//! Source: Raffel et al. 2020; names and layouts of parameters are those of Hugging Face's
//! `T5ForConditionalGeneration`, starting values those of its `_init_weights`.

use super::keys::{
    GELU_TANH, bad, check_extents, check_layers, check_positive, check_rates, parse, refuse_others, require_whole,
    resolve_aliases,
};
use super::parts::{Dropouts, Projection};
use super::{CacheShapes, Caches, Family, Inputs, Mode};
use crate::ops::{
    ATTENTION_ROWS, Activation, Add, Attention, CachedAttention, Embedding, Gated, RelativeBias, Relu, RmsNorm, Scale,
};
use crate::{Graph, GraphError, Init, ProgramBuilder, TensorId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Sizes and rates, under the keys of Hugging Face's config.json.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the keys are Hugging Face's and documented there")]
pub struct T5Config {
    pub vocab_size: usize,
    pub d_model: usize,
    pub d_kv: usize,
    pub d_ff: usize,
    pub num_layers: usize,
    pub num_decoder_layers: usize,
    pub num_heads: usize,
    #[serde(default = "default_buckets")]
    pub relative_attention_num_buckets: usize,
    #[serde(default = "default_distance")]
    pub relative_attention_max_distance: usize,
    #[serde(default = "default_dropout")]
    pub dropout_rate: f32,
    #[serde(default = "default_epsilon")]
    pub layer_norm_epsilon: f32,
    #[serde(default = "default_factor")]
    pub initializer_factor: f32,
    #[serde(default)]
    pub feed_forward_proj: FeedForward,
    #[serde(default = "default_tied")]
    pub tie_word_embeddings: bool,
    /// Whether the head multiplies the decoder's states times `d_model` to the power of -1/2.
    pub scale_decoder_outputs: bool,
    #[serde(default)]
    pub pad_token_id: u32,
    #[serde(default = "default_end")]
    pub eos_token_id: u32,
    #[serde(default)]
    pub decoder_start_token_id: u32,
}

/// What lies between the two matrices of a feed-forward layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FeedForward {
    /// v1.0's.
    #[default]
    #[serde(rename = "relu")]
    Relu,
    /// v1.1's, with the tangent's approximation.
    #[serde(
        rename = "gated-gelu",
        alias = "gated-gelu_new",
        alias = "gated-gelu_pytorch_tanh",
        alias = "gated-gelu_fast",
        alias = "gated-gelu_python_tanh",
        alias = "gated-gelu_accurate"
    )]
    GatedGelu,
}

fn default_buckets() -> usize {
    32
}
fn default_distance() -> usize {
    128
}
fn default_dropout() -> f32 {
    0.1
}
fn default_epsilon() -> f32 {
    1e-6
}
fn default_factor() -> f32 {
    1.0
}
fn default_tied() -> bool {
    true
}
fn default_end() -> u32 {
    1
}

/// A named size.
struct Preset {
    name: &'static str,
    width: usize,
    head_size: usize,
    inner: usize,
    layers: usize,
    heads: usize,
    /// Gated GELU and a head of its own.
    newer: bool,
}

/// The published sizes, and `t5-nano` for a first run. Source: Raffel et al. 2020, section 3.7; Chung et al. 2022.
#[rustfmt::skip]
const PRESETS: &[Preset] = &[
    Preset { name: "t5-nano", width: 192, head_size: 32, inner: 384, layers: 3, heads: 6, newer: true },
    Preset { name: "t5-small", width: 512, head_size: 64, inner: 2048, layers: 6, heads: 8, newer: false },
    Preset { name: "t5-base", width: 768, head_size: 64, inner: 3072, layers: 12, heads: 12, newer: false },
    Preset { name: "t5-large", width: 1024, head_size: 64, inner: 4096, layers: 24, heads: 16, newer: false },
    Preset { name: "t5-xl", width: 1024, head_size: 128, inner: 16_384, layers: 24, heads: 32, newer: false },
    Preset { name: "flan-t5-small", width: 512, head_size: 64, inner: 1024, layers: 8, heads: 6, newer: true },
    Preset { name: "flan-t5-base", width: 768, head_size: 64, inner: 2048, layers: 12, heads: 12, newer: true },
    Preset { name: "flan-t5-large", width: 1024, head_size: 64, inner: 2816, layers: 24, heads: 16, newer: true },
    Preset { name: "flan-t5-xl", width: 2048, head_size: 64, inner: 5120, layers: 24, heads: 32, newer: true },
    Preset { name: "flan-t5-xxl", width: 4096, head_size: 64, inner: 10_240, layers: 24, heads: 64, newer: true },
];

/// Other names of presets.
const ALIASES: [(&str, &str); 1] = [("t5-3b", "t5-xl")];

impl Preset {
    fn config(&self) -> T5Config {
        T5Config {
            vocab_size: 32_128,
            d_model: self.width,
            d_kv: self.head_size,
            d_ff: self.inner,
            num_layers: self.layers,
            num_decoder_layers: self.layers,
            num_heads: self.heads,
            relative_attention_num_buckets: default_buckets(),
            relative_attention_max_distance: default_distance(),
            dropout_rate: 0.0,
            layer_norm_epsilon: default_epsilon(),
            initializer_factor: default_factor(),
            feed_forward_proj: if self.newer { FeedForward::GatedGelu } else { FeedForward::Relu },
            tie_word_embeddings: !self.newer,
            scale_decoder_outputs: !self.newer,
            pad_token_id: 0,
            eos_token_id: default_end(),
            decoder_start_token_id: 0,
        }
    }
}

/// Relative positions have no end; this is where sizes become absurd.
const MOST_POSITIONS: usize = 1 << 24;

impl T5Config {
    /// Names of the presets.
    pub(super) fn preset_names() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|p| p.name)
    }

    pub(super) fn preset(name: &str) -> Option<Self> {
        let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name);
        PRESETS.iter().find(|p| p.name == name).map(Preset::config)
    }

    /// Reads the keys; refuses those that ask for a variant that is not built. Errors: `BadConfig`.
    pub(super) fn from_value(mut value: Value) -> Result<Self, GraphError> {
        resolve_aliases(
            &mut value,
            &[
                ("hidden_size", "d_model"),
                ("num_attention_heads", "num_heads"),
                ("num_hidden_layers", "num_layers"),
                ("head_dim", "d_kv"),
            ],
        )?;
        let gated_gelu = GELU_TANH.map(|name| json!(format!("gated-{name}")));
        let built = [&[json!("relu"), json!("gated-gelu")], &gated_gelu[..]].concat();
        let gated = value.get("feed_forward_proj").is_some_and(|kind| *kind != "relu" && built.contains(kind));
        let activations = if gated { GELU_TANH.map(Value::from).to_vec() } else { vec![json!("relu")] };
        refuse_others(
            &value,
            &[
                ("feed_forward_proj", &built),
                ("dense_act_fn", &activations),
                ("is_encoder_decoder", &[json!(true)]),
                ("is_decoder", &[json!(false)]),
                ("quantization_config", &[]),
            ],
        )?;
        require_whole(&value, &["vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads"])?;
        if let Some(said) = value.get("is_gated_act").and_then(Value::as_bool).filter(|said| *said != gated) {
            let kind = if gated { "gated-gelu" } else { "relu" };
            return Err(bad("is_gated_act", format!("is {said}, which contradicts feed_forward_proj, `{kind}`")));
        }
        let map = value.as_object_mut().ok_or_else(|| bad("(file)", "is not an object"))?;
        map.retain(|_, value| !value.is_null());
        if !map.contains_key("scale_decoder_outputs") {
            let tied = map.get("tie_word_embeddings").cloned().unwrap_or(json!(default_tied()));
            map.insert("scale_decoder_outputs".into(), tied);
        }
        if !map.contains_key("num_decoder_layers") {
            map.insert("num_decoder_layers".into(), map["num_layers"].clone());
        }
        let config: Self = parse(value)?;
        config.validate()?;
        Ok(config)
    }

    fn width(&self) -> usize {
        self.num_heads * self.d_kv
    }

    fn bias(&self, bidirectional: bool) -> RelativeBias {
        RelativeBias {
            buckets: self.relative_attention_num_buckets,
            max_distance: self.relative_attention_max_distance,
            bidirectional,
        }
    }

    fn declare_attention(&self, graph: &mut Graph, name: &str) -> AttentionWeights {
        let (c, inner, factor) = (self.d_model, self.width(), self.initializer_factor);
        let narrow = factor * (c as f32).powf(-0.5);
        let query = factor * ((c * self.d_kv) as f32).powf(-0.5);
        let mut project =
            |suffix: &str, extents, std| Projection::declare(graph, &format!("{name}.{suffix}"), extents, std, false);
        AttentionWeights {
            q: project("q", [c, inner], query),
            k: project("k", [c, inner], narrow),
            v: project("v", [c, inner], narrow),
            o: project("o", [inner, c], factor * (inner as f32).powf(-0.5)),
        }
    }

    fn declare_stack(&self, graph: &mut Graph, stack: &str, layers: usize, attends: bool) -> Stack {
        let (c, factor) = (self.d_model, self.initializer_factor);
        let norm = |graph: &mut Graph, name: String| graph.parameter(format!("{name}.weight"), &[c], Init::Ones, false);
        let mut table = None;
        let mut blocks = Vec::with_capacity(layers);
        for layer in 0..layers {
            let place = |part: usize| format!("{stack}.block.{layer}.layer.{part}");
            let own = self.declare_attention(graph, &format!("{}.SelfAttention", place(0)));
            if layer == 0 {
                let shape = [self.relative_attention_num_buckets, self.num_heads];
                let name = format!("{}.SelfAttention.relative_attention_bias.weight", place(0));
                table = Some(graph.parameter(name, &shape, Init::Normal(factor * (c as f32).powf(-0.5)), true));
            }
            let own_norm = norm(graph, format!("{}.layer_norm", place(0)));
            let source = attends.then(|| {
                let weights = self.declare_attention(graph, &format!("{}.EncDecAttention", place(1)));
                (weights, norm(graph, format!("{}.layer_norm", place(1))))
            });
            let last = place(if attends { 2 } else { 1 });
            let dense = |suffix: &str| format!("{last}.DenseReluDense.{suffix}");
            let (inward, outward) = (factor * (c as f32).powf(-0.5), factor * (self.d_ff as f32).powf(-0.5));
            let mut up = |suffix| Projection::declare(graph, &dense(suffix), [c, self.d_ff], inward, false);
            let up = match self.feed_forward_proj {
                FeedForward::Relu => vec![up("wi")],
                FeedForward::GatedGelu => vec![up("wi_0"), up("wi_1")],
            };
            let down = Projection::declare(graph, &dense("wo"), [self.d_ff, c], outward, false);
            let dense_norm = norm(graph, format!("{last}.layer_norm"));
            blocks.push(Block { own, own_norm, source, up, down, dense_norm });
        }
        let last_norm = norm(graph, format!("{stack}.final_layer_norm"));
        Stack { table: table.expect("a stack has a layer"), blocks, last_norm }
    }

    fn norm(&self, builder: &mut ProgramBuilder, x: TensorId, weight: TensorId) -> Result<TensorId, GraphError> {
        Ok(builder.push(RmsNorm { eps: self.layer_norm_epsilon }, &[x, weight])?[0])
    }

    /// The feed-forward part of a block. Returns what is added to the residual stream.
    fn feed_forward(
        &self,
        builder: &mut ProgramBuilder,
        block: &Block,
        x: TensorId,
        dropouts: &mut Dropouts,
    ) -> Result<TensorId, GraphError> {
        let normed = self.norm(builder, x, block.dense_norm)?;
        let up = block.up.iter().map(|up| up.apply(builder, normed)).collect::<Result<Vec<_>, _>>()?;
        let inner = match self.feed_forward_proj {
            FeedForward::Relu => builder.apply(Relu, &up)?,
            FeedForward::GatedGelu => builder.apply(Gated { activation: Activation::GeluTanh }, &up)?,
        };
        let inner = dropouts.apply(builder, inner, self.dropout_rate)?;
        block.down.apply(builder, inner)
    }

    /// An attention of scale one with these operands.
    fn attention(
        &self,
        causal: bool,
        bias: Option<RelativeBias>,
        segmented: bool,
        dropouts: &mut Dropouts,
    ) -> Attention {
        Attention {
            heads: self.num_heads,
            kv_heads: self.num_heads,
            packed: false,
            causal,
            window: None,
            scale: 1.0,
            bias,
            segmented,
            dropout: dropouts.key(self.dropout_rate),
            rows: ATTENTION_ROWS,
        }
    }

    /// tokens: (B, S) -> the encoder's last states (B, S, C).
    fn encode(
        &self,
        builder: &mut ProgramBuilder,
        parameters: &Parameters,
        inputs: &Inputs,
        dropouts: &mut Dropouts,
    ) -> Result<TensorId, GraphError> {
        let stack = &parameters.encoder;
        builder.scope("encoder/embedding", None);
        let x = builder.apply(Embedding, &[inputs.tokens, parameters.table])?;
        let mut x = dropouts.apply(builder, x, self.dropout_rate)?;
        for (layer, block) in stack.blocks.iter().enumerate() {
            let number = u32::try_from(layer).ok();
            builder.scope(format!("encoder/h{layer}/attention"), number);
            let normed = self.norm(builder, x, block.own_norm)?;
            let [q, k, v] = block.own.streams(builder, normed, normed)?;
            let op = self.attention(false, Some(self.bias(true)), inputs.segments.is_some(), dropouts);
            let segments = inputs.segments.map_or(vec![], |segments| vec![segments, segments]);
            let y = builder.push(op, &[&[q, k, v, stack.table], segments.as_slice()].concat())?[0];
            let y = block.own.o.apply(builder, y)?;
            let y = dropouts.apply(builder, y, self.dropout_rate)?;
            x = builder.apply(Add, &[x, y])?;
            builder.scope(format!("encoder/h{layer}/mlp"), number);
            let y = self.feed_forward(builder, block, x, dropouts)?;
            let y = dropouts.apply(builder, y, self.dropout_rate)?;
            x = builder.apply(Add, &[x, y])?;
        }
        builder.scope("encoder/end", None);
        let x = self.norm(builder, x, stack.last_norm)?;
        dropouts.apply(builder, x, self.dropout_rate)
    }

    /// The decoder's attention to itself: to all of its tokens, or to those whose keys and values are kept.
    fn attend_to_itself(
        &self,
        builder: &mut ProgramBuilder,
        block: &Block,
        normed: TensorId,
        table: TensorId,
        cache: Option<[TensorId; 2]>,
        dropouts: &mut Dropouts,
    ) -> Result<TensorId, GraphError> {
        let [q, k, v] = block.own.streams(builder, normed, normed)?;
        let op = self.attention(true, Some(self.bias(false)), false, dropouts);
        let Some([keys, values]) = cache else { return Ok(builder.push(op, &[q, k, v, table])?[0]) };
        let Attention { heads, kv_heads, packed, window, scale, bias, .. } = op;
        let capacity = builder.graph[keys].ty.shape[1];
        let op = CachedAttention { heads, kv_heads, packed, window, scale, bias, capacity };
        Ok(builder.push_into(op, &[q, k, v, table], &[None, Some(keys), Some(values)])?[0])
    }

    /// decoder tokens: (B, T) -> the decoder's last states (B, T, C), scaled for the head. `encoded` are the encoder's
    /// last states; without them the keys and values that were made of them are in the caches.
    fn decode(
        &self,
        builder: &mut ProgramBuilder,
        parameters: &Parameters,
        inputs: &Inputs,
        encoded: Option<TensorId>,
        caches: &Caches,
        dropouts: &mut Dropouts,
    ) -> Result<TensorId, GraphError> {
        let stack = &parameters.decoder;
        let [tokens, segments] = inputs.decoder.expect("a decoder is fed tokens and their segments");
        builder.scope("decoder/embedding", None);
        let x = builder.apply(Embedding, &[tokens, parameters.table])?;
        let mut x = dropouts.apply(builder, x, self.dropout_rate)?;
        for (layer, block) in stack.blocks.iter().enumerate() {
            let number = u32::try_from(self.num_layers + layer).ok();
            builder.scope(format!("decoder/h{layer}/attention"), number);
            let normed = self.norm(builder, x, block.own_norm)?;
            let cache = caches.own.get(layer).copied();
            let y = self.attend_to_itself(builder, block, normed, stack.table, cache, dropouts)?;
            let y = block.own.o.apply(builder, y)?;
            let y = dropouts.apply(builder, y, self.dropout_rate)?;
            x = builder.apply(Add, &[x, y])?;

            builder.scope(format!("decoder/h{layer}/source"), number);
            let (weights, norm) = block.source.as_ref().expect("a decoder's blocks attend to the source");
            let normed = self.norm(builder, x, *norm)?;
            let [q, k, v] = match (encoded, caches.source.get(layer)) {
                (Some(encoded), _) => weights.streams(builder, normed, encoded)?,
                (None, Some(&[k, v])) => [weights.q.apply(builder, normed)?, k, v],
                (None, None) => panic!("a decoder needs the encoder's states, or what is kept of them"),
            };
            let op = self.attention(false, None, inputs.segments.is_some(), dropouts);
            let segments = inputs.segments.map_or(vec![], |of_source| vec![segments, of_source]);
            let y = builder.push(op, &[&[q, k, v], segments.as_slice()].concat())?[0];
            let y = weights.o.apply(builder, y)?;
            let y = dropouts.apply(builder, y, self.dropout_rate)?;
            x = builder.apply(Add, &[x, y])?;

            builder.scope(format!("decoder/h{layer}/mlp"), number);
            let y = self.feed_forward(builder, block, x, dropouts)?;
            let y = dropouts.apply(builder, y, self.dropout_rate)?;
            x = builder.apply(Add, &[x, y])?;
        }
        builder.scope("head", None);
        let x = self.norm(builder, x, stack.last_norm)?;
        let x = dropouts.apply(builder, x, self.dropout_rate)?;
        match self.scale_decoder_outputs {
            true => builder.apply(Scale { factor: (self.d_model as f32).powf(-0.5) }, &[x]),
            false => Ok(x),
        }
    }
}

impl Family for T5Config {
    type Parameters = Parameters;

    fn to_json(&self) -> String {
        let gated = self.feed_forward_proj == FeedForward::GatedGelu;
        let more = json!({
            "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "torch_dtype": "float32",
            "is_encoder_decoder": true, "is_gated_act": gated,
            "dense_act_fn": if gated { "gelu_new" } else { "relu" }, "n_positions": 512,
        });
        super::keys::to_json(self, &more)
    }

    fn validate(&self) -> Result<(), GraphError> {
        check_layers("num_layers", self.num_layers)?;
        check_layers("num_decoder_layers", self.num_decoder_layers)?;
        check_extents(&[
            ("vocab_size", self.vocab_size),
            ("d_model", self.d_model),
            ("d_kv", self.d_kv),
            ("d_ff", self.d_ff),
            ("num_heads", self.num_heads),
            ("relative_attention_num_buckets", self.relative_attention_num_buckets),
            ("relative_attention_max_distance", self.relative_attention_max_distance),
        ])?;
        check_extents(&[("d_kv", self.width())])?;
        let (buckets, distance) = (self.relative_attention_num_buckets, self.relative_attention_max_distance);
        if buckets < 4 || !buckets.is_multiple_of(4) {
            return Err(bad("relative_attention_num_buckets", format!("is {buckets}; it must be a multiple of 4")));
        }
        if distance <= buckets / 2 {
            let problem = format!("is {distance}; it must be more than half of the {buckets} buckets");
            return Err(bad("relative_attention_max_distance", problem));
        }
        for (key, id) in [
            ("pad_token_id", self.pad_token_id),
            ("eos_token_id", self.eos_token_id),
            ("decoder_start_token_id", self.decoder_start_token_id),
        ] {
            if id as usize >= self.vocab_size {
                return Err(bad(key, format!("is {id}, outside the vocabulary of {}", self.vocab_size)));
            }
        }
        check_rates(&[("dropout_rate", self.dropout_rate)])?;
        check_positive(&[
            ("layer_norm_epsilon", self.layer_norm_epsilon),
            ("initializer_factor", self.initializer_factor),
        ])
    }

    fn blocks(&self) -> usize {
        self.num_layers + self.num_decoder_layers
    }

    fn max_positions(&self) -> usize {
        MOST_POSITIONS
    }

    fn set_max_positions(&mut self, _positions: usize) {}

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn set_vocab_size(&mut self, vocab_size: usize) {
        self.vocab_size = vocab_size;
    }

    fn set_dropout(&mut self, rate: f32) {
        self.dropout_rate = rate;
    }

    fn leaves_head_to_weights(&self) -> bool {
        self.tie_word_embeddings && !self.scale_decoder_outputs
    }

    fn untie_head(&mut self) {
        self.tie_word_embeddings = false;
    }

    fn set_special_tokens(&mut self, pad: u32, end: u32) {
        (self.pad_token_id, self.decoder_start_token_id, self.eos_token_id) = (pad, pad, end);
    }

    fn decoder_start(&self) -> Option<u32> {
        Some(self.decoder_start_token_id)
    }

    fn elements_per_token(&self) -> u128 {
        self.d_ff.max(self.d_model).max(self.width()) as u128 * self.blocks() as u128
    }

    fn parameter_bound(&self) -> u128 {
        let c = self.d_model as u128;
        let block = 8 * self.width() as u128 + 3 * self.d_ff as u128 + 4;
        let tables = 2 * self.relative_attention_num_buckets as u128 * self.num_heads as u128;
        c * (2 * self.vocab_size as u128 + 2 + block * self.blocks() as u128) + tables
    }

    fn declare(&self, graph: &mut Graph) -> Parameters {
        let (c, factor) = (self.d_model, self.initializer_factor);
        let table = graph.parameter("shared.weight", &[self.vocab_size, c], Init::Normal(factor), true);
        let encoder = self.declare_stack(graph, "encoder", self.num_layers, false);
        let decoder = self.declare_stack(graph, "decoder", self.num_decoder_layers, true);
        let head = match self.tie_word_embeddings {
            true => table,
            // Not one, as there, with which a fresh model begins far above the entropy of its vocabulary.
            false => {
                let std = factor * (c as f32).powf(-0.5);
                graph.parameter("lm_head.weight", &[self.vocab_size, c], Init::Normal(std), true)
            }
        };
        Parameters { table, encoder, decoder, head }
    }

    fn head(parameters: &Parameters) -> TensorId {
        parameters.head
    }

    fn forward(
        &self,
        builder: &mut ProgramBuilder,
        parameters: &Parameters,
        inputs: &Inputs,
        mode: Mode,
        caches: &Caches,
    ) -> Result<TensorId, GraphError> {
        let mut dropouts = Dropouts::new(mode);
        let encoded = match mode {
            Mode::Cached => None,
            Mode::Train { .. } | Mode::Evaluate => Some(self.encode(builder, parameters, inputs, &mut dropouts)?),
        };
        self.decode(builder, parameters, inputs, encoded, caches, &mut dropouts)
    }

    fn cache_source(
        &self,
        builder: &mut ProgramBuilder,
        parameters: &Parameters,
        inputs: &Inputs,
        caches: &Caches,
    ) -> Result<(), GraphError> {
        let encoded = self.encode(builder, parameters, inputs, &mut Dropouts::new(Mode::Cached))?;
        for (layer, (block, [keys, values])) in parameters.decoder.blocks.iter().zip(&caches.source).enumerate() {
            builder.scope(format!("decoder/h{layer}/source"), u32::try_from(self.num_layers + layer).ok());
            let (weights, _) = block.source.as_ref().expect("a decoder's blocks attend to the source");
            weights.k.apply_into(builder, encoded, *keys)?;
            weights.v.apply_into(builder, encoded, *values)?;
        }
        Ok(())
    }

    fn cache_shapes(&self, rows: usize, positions: usize, source: usize) -> CacheShapes {
        let (own, of_source) = (vec![rows, positions, self.width()], vec![rows, source, self.width()]);
        let each = |shape: Vec<usize>| vec![[shape.clone(), shape]; self.num_decoder_layers];
        CacheShapes { own: each(own), source: each(of_source) }
    }
}

/// The parameters in a graph.
#[derive(Debug, Clone)]
pub struct Parameters {
    table: TensorId,
    encoder: Stack,
    decoder: Stack,
    head: TensorId,
}

#[derive(Debug, Clone)]
struct Stack {
    /// Biases of distances (buckets, H), which the first block owns and all use.
    table: TensorId,
    blocks: Vec<Block>,
    last_norm: TensorId,
}

#[derive(Debug, Clone)]
struct Block {
    own: AttentionWeights,
    own_norm: TensorId,
    /// Attention to the source, in a decoder.
    source: Option<(AttentionWeights, TensorId)>,
    /// One matrix, or the gate's and the other.
    up: Vec<Projection>,
    down: Projection,
    dense_norm: TensorId,
}

#[derive(Debug, Clone)]
struct AttentionWeights {
    q: Projection,
    k: Projection,
    v: Projection,
    o: Projection,
}

impl AttentionWeights {
    /// Queries of `x`, keys and values of `of`.
    fn streams(&self, builder: &mut ProgramBuilder, x: TensorId, of: TensorId) -> Result<[TensorId; 3], GraphError> {
        Ok([self.q.apply(builder, x)?, self.k.apply(builder, of)?, self.v.apply(builder, of)?])
    }
}
