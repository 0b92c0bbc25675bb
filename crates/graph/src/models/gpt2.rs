//! GPT-2: learned positions, pre-norm blocks, tanh-GELU, a head tied to the token embedding.
//! Source: Radford et al. 2019; names and layouts of parameters are those of Hugging Face's `GPT2LMHeadModel`.

use super::keys::{
    GELU_TANH, bad, check_extents, check_layers, check_positive, check_rates, parse, refuse_others, require_whole,
    resolve_aliases,
};
use super::parts::Dropouts;
use super::{CacheShapes, Caches, Family, Inputs, Mode};
use crate::ops::{
    ATTENTION_ROWS, Add, Attention, CachedAttention, Embedding, Gelu, LayerNorm, Linear, Positions, WeightLayout,
};
use crate::{Graph, GraphError, Init, ProgramBuilder, TensorId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Sizes and rates, under the keys of Hugging Face's config.json. `bias` is ours: nanoGPT's models have none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the keys are Hugging Face's and documented there")]
pub struct Gpt2Config {
    pub vocab_size: usize,
    pub n_positions: usize,
    pub n_embd: usize,
    pub n_layer: usize,
    pub n_head: usize,
    #[serde(default)]
    pub n_inner: Option<usize>,
    #[serde(default = "default_dropout")]
    pub attn_pdrop: f32,
    #[serde(default = "default_dropout")]
    pub embd_pdrop: f32,
    #[serde(default = "default_dropout")]
    pub resid_pdrop: f32,
    #[serde(default = "default_epsilon")]
    pub layer_norm_epsilon: f32,
    #[serde(default = "default_range")]
    pub initializer_range: f32,
    #[serde(default = "default_bias")]
    pub bias: bool,
}

fn default_dropout() -> f32 {
    0.1
}
fn default_epsilon() -> f32 {
    1e-5
}
fn default_range() -> f32 {
    0.02
}
fn default_bias() -> bool {
    true
}

/// A named size.
struct Preset {
    name: &'static str,
    layers: usize,
    width: usize,
    heads: usize,
    positions: usize,
    vocab_size: usize,
}

/// The published sizes, and `nano` for the first run on anybody's machine.
const PRESETS: &[Preset] = &[
    Preset { name: "nano", layers: 4, width: 128, heads: 4, positions: 64, vocab_size: 256 },
    Preset { name: "gpt2", layers: 12, width: 768, heads: 12, positions: 1024, vocab_size: 50257 },
    Preset { name: "gpt2-medium", layers: 24, width: 1024, heads: 16, positions: 1024, vocab_size: 50257 },
    Preset { name: "gpt2-large", layers: 36, width: 1280, heads: 20, positions: 1024, vocab_size: 50257 },
    Preset { name: "gpt2-xl", layers: 48, width: 1600, heads: 25, positions: 1024, vocab_size: 50257 },
];

impl Preset {
    fn config(&self) -> Gpt2Config {
        Gpt2Config {
            vocab_size: self.vocab_size,
            n_positions: self.positions,
            n_embd: self.width,
            n_layer: self.layers,
            n_head: self.heads,
            n_inner: None,
            attn_pdrop: 0.0,
            embd_pdrop: 0.0,
            resid_pdrop: 0.0,
            layer_norm_epsilon: default_epsilon(),
            initializer_range: default_range(),
            bias: true,
        }
    }
}

impl Gpt2Config {
    /// Names of the presets.
    pub(super) fn preset_names() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|p| p.name)
    }

    pub(super) fn preset(name: &str) -> Option<Self> {
        PRESETS.iter().find(|p| p.name == name).map(Preset::config)
    }

    /// Reads the keys; refuses those that ask for a variant that is not built here. Errors: `BadConfig`.
    pub(super) fn from_value(mut value: Value) -> Result<Self, GraphError> {
        resolve_aliases(
            &mut value,
            &[
                ("hidden_size", "n_embd"),
                ("max_position_embeddings", "n_positions"),
                ("num_attention_heads", "n_head"),
                ("num_hidden_layers", "n_layer"),
            ],
        )?;
        refuse_others(
            &value,
            &[
                ("activation_function", &GELU_TANH.map(Value::from)),
                ("scale_attn_weights", &[json!(true)]),
                ("scale_attn_by_inverse_layer_idx", &[json!(false)]),
                ("add_cross_attention", &[json!(false)]),
                ("tie_word_embeddings", &[json!(true)]),
                ("quantization_config", &[]),
            ],
        )?;
        require_whole(&value, &["vocab_size", "n_positions", "n_embd", "n_layer", "n_head"])?;
        let positions = value["n_positions"].as_u64();
        if let Some(context) = value.get("n_ctx").and_then(Value::as_u64).filter(|n| Some(*n) != positions) {
            return Err(bad(
                "n_ctx",
                format!("is {context}, which contradicts n_positions = {}", value["n_positions"]),
            ));
        }
        let config: Self = parse(value)?;
        config.validate()?;
        Ok(config)
    }

    fn inner(&self) -> usize {
        self.n_inner.unwrap_or(self.n_embd.saturating_mul(4))
    }

    /// The widest row of any activation.
    fn widest(&self) -> u128 {
        (3 * self.n_embd).max(self.inner()) as u128
    }

    /// Weight, and bias if there are any.
    fn declare_norm(&self, graph: &mut Graph, name: &str) -> Vec<TensorId> {
        let mut ids = vec![graph.parameter(format!("{name}.weight"), &[self.n_embd], Init::Ones, false)];
        if self.bias {
            ids.push(graph.parameter(format!("{name}.bias"), &[self.n_embd], Init::Zeros, false));
        }
        ids
    }

    /// Weight (in, out), and bias if there are any.
    fn declare_linear(&self, graph: &mut Graph, name: &str, from: usize, to: usize, std: f32) -> Vec<TensorId> {
        let mut ids = vec![graph.parameter(format!("{name}.weight"), &[from, to], Init::Normal(std), true)];
        if self.bias {
            ids.push(graph.parameter(format!("{name}.bias"), &[to], Init::Zeros, false));
        }
        ids
    }

    /// qkv: (B, T, 3C) -> what each token's attention gives (B, T, C).
    fn attend(
        &self,
        builder: &mut ProgramBuilder,
        qkv: TensorId,
        inputs: &Inputs,
        cache: Option<[TensorId; 2]>,
        dropouts: &mut Dropouts,
    ) -> Result<TensorId, GraphError> {
        let (heads, scale) = (self.n_head, 1.0 / ((self.n_embd / self.n_head) as f32).sqrt());
        let dropout = dropouts.key(self.attn_pdrop);
        if let Some([keys, values]) = cache {
            let capacity = builder.graph[keys].ty.shape[1];
            let op =
                CachedAttention { heads, kv_heads: heads, packed: true, window: None, scale, bias: None, capacity };
            return Ok(builder.push_into(op, &[qkv], &[None, Some(keys), Some(values)])?[0]);
        }
        let op = Attention {
            heads,
            kv_heads: heads,
            packed: true,
            causal: true,
            window: None,
            scale,
            bias: None,
            segmented: inputs.segments.is_some(),
            dropout,
            rows: ATTENTION_ROWS,
        };
        let segments = inputs.segments.map_or(vec![], |segments| vec![segments, segments]);
        Ok(builder.push(op, &[&[qkv], segments.as_slice()].concat())?[0])
    }

    fn norm(&self, builder: &mut ProgramBuilder, x: TensorId, parameters: &[TensorId]) -> Result<TensorId, GraphError> {
        let op = LayerNorm { eps: self.layer_norm_epsilon, bias: self.bias };
        Ok(builder.push(op, &[&[x], parameters].concat())?[0])
    }

    fn linear(
        &self,
        builder: &mut ProgramBuilder,
        x: TensorId,
        parameters: &[TensorId],
    ) -> Result<TensorId, GraphError> {
        builder.apply(Linear { layout: WeightLayout::InOut, bias: self.bias }, &[&[x], parameters].concat())
    }
}

impl Family for Gpt2Config {
    type Parameters = Parameters;

    fn to_json(&self) -> String {
        let more = json!({
            "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new",
            "tie_word_embeddings": true, "n_ctx": self.n_positions, "torch_dtype": "float32",
        });
        super::keys::to_json(self, &more)
    }

    fn validate(&self) -> Result<(), GraphError> {
        check_extents(&[
            ("vocab_size", self.vocab_size),
            ("n_positions", self.n_positions),
            ("n_embd", self.n_embd),
            ("n_head", self.n_head),
            ("n_inner", self.inner()),
        ])?;
        check_layers("n_layer", self.n_layer)?;
        if !self.n_embd.is_multiple_of(self.n_head) {
            return Err(bad("n_head", format!("is {}, which does not divide n_embd = {}", self.n_head, self.n_embd)));
        }
        check_rates(&[
            ("attn_pdrop", self.attn_pdrop),
            ("embd_pdrop", self.embd_pdrop),
            ("resid_pdrop", self.resid_pdrop),
        ])?;
        check_positive(&[
            ("layer_norm_epsilon", self.layer_norm_epsilon),
            ("initializer_range", self.initializer_range),
        ])
    }

    fn blocks(&self) -> usize {
        self.n_layer
    }

    fn max_positions(&self) -> usize {
        self.n_positions
    }

    fn set_max_positions(&mut self, positions: usize) {
        self.n_positions = positions;
    }

    fn has_position_table(&self) -> bool {
        true
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn set_vocab_size(&mut self, vocab_size: usize) {
        self.vocab_size = vocab_size;
    }

    fn set_dropout(&mut self, rate: f32) {
        (self.attn_pdrop, self.embd_pdrop, self.resid_pdrop) = (rate, rate, rate);
    }

    fn elements_per_token(&self) -> u128 {
        self.widest() * self.n_layer as u128
    }

    fn parameter_bound(&self) -> u128 {
        let (c, tables) = (self.n_embd as u128, (self.vocab_size + self.n_positions) as u128);
        c * (tables + 5 * self.widest() * self.n_layer as u128)
    }

    fn declare(&self, graph: &mut Graph) -> Parameters {
        let (c, std) = (self.n_embd, self.initializer_range);
        // Projections onto the residual stream start smaller, so that its variance does not grow with depth.
        let residual_std = std / (2.0 * self.n_layer as f32).sqrt();
        let name = |suffix: &str| format!("transformer.{suffix}");
        let token_table = graph.parameter(name("wte.weight"), &[self.vocab_size, c], Init::Normal(std), true);
        let position_table = graph.parameter(name("wpe.weight"), &[self.n_positions, c], Init::Normal(std), true);
        let mut blocks = Vec::with_capacity(self.n_layer);
        for layer in 0..self.n_layer {
            let name = |suffix: &str| format!("transformer.h.{layer}.{suffix}");
            blocks.push(Block {
                norm1: self.declare_norm(graph, &name("ln_1")),
                qkv: self.declare_linear(graph, &name("attn.c_attn"), c, 3 * c, std),
                attention_out: self.declare_linear(graph, &name("attn.c_proj"), c, c, residual_std),
                norm2: self.declare_norm(graph, &name("ln_2")),
                up: self.declare_linear(graph, &name("mlp.c_fc"), c, self.inner(), std),
                down: self.declare_linear(graph, &name("mlp.c_proj"), self.inner(), c, residual_std),
            });
        }
        Parameters { token_table, position_table, blocks, last_norm: self.declare_norm(graph, &name("ln_f")) }
    }

    fn head(parameters: &Parameters) -> TensorId {
        parameters.token_table
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
        builder.scope("embedding", None);
        let x = builder.apply(Embedding, &[inputs.tokens, parameters.token_table])?;
        let x = match inputs.positions {
            None => builder.apply(Positions { offset: mode == Mode::Cached }, &[x, parameters.position_table])?,
            Some(positions) => {
                let placed = builder.apply(Embedding, &[positions, parameters.position_table])?;
                builder.apply(Add, &[x, placed])?
            }
        };
        let mut x = dropouts.apply(builder, x, self.embd_pdrop)?;
        for (layer, block) in parameters.blocks.iter().enumerate() {
            let number = u32::try_from(layer).ok();
            builder.scope(format!("h{layer}/attention"), number);
            let normed = self.norm(builder, x, &block.norm1)?;
            let qkv = self.linear(builder, normed, &block.qkv)?;
            let y = self.attend(builder, qkv, inputs, caches.own.get(layer).copied(), &mut dropouts)?;
            let y = self.linear(builder, y, &block.attention_out)?;
            let y = dropouts.apply(builder, y, self.resid_pdrop)?;
            x = builder.apply(Add, &[x, y])?;
            builder.scope(format!("h{layer}/mlp"), number);
            let normed = self.norm(builder, x, &block.norm2)?;
            let up = self.linear(builder, normed, &block.up)?;
            let activated = builder.apply(Gelu, &[up])?;
            let y = self.linear(builder, activated, &block.down)?;
            let y = dropouts.apply(builder, y, self.resid_pdrop)?;
            x = builder.apply(Add, &[x, y])?;
        }
        builder.scope("head", None);
        self.norm(builder, x, &parameters.last_norm)
    }

    fn cache_shapes(&self, rows: usize, positions: usize, _source: usize) -> CacheShapes {
        let shape = vec![rows, positions, self.n_embd];
        CacheShapes { own: vec![[shape.clone(), shape]; self.n_layer], source: vec![] }
    }
}

/// The parameters in a graph. Each norm and linear layer: weight, and bias if the model has them.
#[derive(Debug, Clone)]
pub struct Parameters {
    token_table: TensorId,
    position_table: TensorId,
    blocks: Vec<Block>,
    last_norm: Vec<TensorId>,
}

#[derive(Debug, Clone)]
struct Block {
    norm1: Vec<TensorId>,
    qkv: Vec<TensorId>,
    attention_out: Vec<TensorId>,
    norm2: Vec<TensorId>,
    up: Vec<TensorId>,
    down: Vec<TensorId>,
}
