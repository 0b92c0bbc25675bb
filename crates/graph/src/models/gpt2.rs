//! GPT-2: learned positions, pre-norm blocks, tanh-GELU, a head tied to the token embedding.
//! Source: Radford et al. 2019; names and layouts of parameters are those of Hugging Face's `GPT2LMHeadModel`.

use super::Mode;
use crate::ops::{
    ATTENTION_ROWS, Add, Attention, CachedAttention, Dropout, DropoutKey, Embedding, Gelu, LayerNorm, Linear,
    Positions, WeightLayout,
};
use crate::{Graph, GraphError, Init, ProgramBuilder, TensorId};
use serde::{Deserialize, Serialize};

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
pub(super) struct Preset {
    pub(super) name: &'static str,
    layers: usize,
    width: usize,
    heads: usize,
    positions: usize,
    vocab_size: usize,
}

/// The published sizes, and `nano` for the first run on anybody's machine.
pub(super) const PRESETS: &[Preset] = &[
    Preset { name: "nano", layers: 4, width: 128, heads: 4, positions: 64, vocab_size: 256 },
    Preset { name: "gpt2", layers: 12, width: 768, heads: 12, positions: 1024, vocab_size: 50257 },
    Preset { name: "gpt2-medium", layers: 24, width: 1024, heads: 16, positions: 1024, vocab_size: 50257 },
    Preset { name: "gpt2-large", layers: 36, width: 1280, heads: 20, positions: 1024, vocab_size: 50257 },
    Preset { name: "gpt2-xl", layers: 48, width: 1600, heads: 25, positions: 1024, vocab_size: 50257 },
];

impl Preset {
    pub(super) fn config(&self) -> Gpt2Config {
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

/// Extents above this are refused: with them, products of a few stay far inside 64 bits.
const LARGEST_EXTENT: usize = 1 << 24;

impl Gpt2Config {
    /// Reads the keys; refuses those that ask for a variant that is not built here. Errors: `BadConfig`.
    pub(super) fn from_value(value: serde_json::Value) -> Result<Self, GraphError> {
        let bad = |key: &str, problem: String| GraphError::BadConfig { key: key.to_owned(), problem };
        for (key, only) in [
            ("activation_function", serde_json::json!("gelu_new")),
            ("scale_attn_weights", serde_json::json!(true)),
            ("scale_attn_by_inverse_layer_idx", serde_json::json!(false)),
            ("add_cross_attention", serde_json::json!(false)),
            ("tie_word_embeddings", serde_json::json!(true)),
        ] {
            if let Some(found) = value.get(key).filter(|found| **found != only) {
                return Err(bad(key, format!("is {found}; only {only} is built")));
            }
        }
        for key in ["vocab_size", "n_positions", "n_embd", "n_layer", "n_head"] {
            match value.get(key) {
                None => return Err(bad(key, "is missing".to_owned())),
                Some(found) if found.as_u64().is_none() => {
                    return Err(bad(key, format!("is {found}; a whole number above zero is needed")));
                }
                Some(_) => {}
            }
        }
        let config: Self = serde_json::from_value(value).map_err(|e| bad("(file)", e.to_string()))?;
        config.validate()?;
        Ok(config)
    }

    pub(super) fn to_json(&self) -> String {
        let mut value = serde_json::to_value(self).expect("a configuration is plain data");
        let extra = serde_json::json!({
            "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new",
            "tie_word_embeddings": true, "n_ctx": self.n_positions, "torch_dtype": "float32",
        });
        let map = value.as_object_mut().expect("a struct serialises to an object");
        map.extend(extra.as_object().expect("an object literal").clone());
        serde_json::to_string_pretty(&value).expect("JSON values serialise")
    }

    pub(super) fn validate(&self) -> Result<(), GraphError> {
        let bad = |key: &str, problem: String| Err(GraphError::BadConfig { key: key.to_owned(), problem });
        let extents = [
            ("vocab_size", self.vocab_size),
            ("n_positions", self.n_positions),
            ("n_embd", self.n_embd),
            ("n_layer", self.n_layer),
            ("n_head", self.n_head),
            ("n_inner", self.inner()),
        ];
        for (key, extent) in extents {
            if extent == 0 || extent > LARGEST_EXTENT {
                return bad(key, format!("is {extent}; it must lie between 1 and {LARGEST_EXTENT}"));
            }
        }
        if self.n_layer > 1_000 {
            return bad("n_layer", format!("is {}; more than 1,000 layers are not supported", self.n_layer));
        }
        if !self.n_embd.is_multiple_of(self.n_head) {
            return bad("n_head", format!("is {}, which does not divide n_embd = {}", self.n_head, self.n_embd));
        }
        for (key, rate) in
            [("attn_pdrop", self.attn_pdrop), ("embd_pdrop", self.embd_pdrop), ("resid_pdrop", self.resid_pdrop)]
        {
            if !(0.0..1.0).contains(&rate) {
                return bad(key, format!("is {rate}; a rate from 0 to below 1 is needed"));
            }
        }
        for (key, value) in
            [("layer_norm_epsilon", self.layer_norm_epsilon), ("initializer_range", self.initializer_range)]
        {
            if !(value.is_finite() && value > 0.0) {
                return bad(key, format!("is {value}; a number above zero is needed"));
            }
        }
        Ok(())
    }

    fn inner(&self) -> usize {
        self.n_inner.unwrap_or(4 * self.n_embd)
    }

    /// The widest row of any activation.
    pub(super) fn widest(&self) -> u128 {
        (3 * self.n_embd).max(self.inner()) as u128
    }

    pub(super) fn declare(&self, graph: &mut Graph) -> Parameters {
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

    pub(super) fn forward(
        &self,
        builder: &mut ProgramBuilder,
        parameters: &Parameters,
        tokens: TensorId,
        mode: Mode,
        caches: &[[TensorId; 2]],
    ) -> Result<TensorId, GraphError> {
        let mut sites = 0..;
        let scale = 1.0 / ((self.n_embd / self.n_head) as f32).sqrt();
        let mut site = || sites.next().expect("an endless range");
        builder.scope("embedding", None);
        let x = builder.apply(Embedding, &[tokens, parameters.token_table])?;
        let x = builder.apply(Positions { offset: mode == Mode::Cached }, &[x, parameters.position_table])?;
        let mut x = dropout(builder, x, self.embd_pdrop, site(), mode)?;
        for (layer, block) in parameters.blocks.iter().enumerate() {
            let number = u32::try_from(layer).ok();
            builder.scope(format!("h{layer}/attention"), number);
            let normed = self.norm(builder, x, &block.norm1)?;
            let qkv = self.linear(builder, normed, &block.qkv)?;
            let site_of_attention = site();
            let y = match mode {
                Mode::Cached => {
                    let [keys, values] = caches[layer];
                    let capacity = builder.graph[keys].ty.shape[0];
                    let (heads, bias) = (self.n_head, None);
                    let op = CachedAttention { heads, kv_heads: heads, packed: true, scale, bias, capacity };
                    builder.push_into(op, &[qkv], &[None, Some(keys), Some(values)])?[0]
                }
                Mode::Train | Mode::Evaluate => {
                    let rate = self.attn_pdrop;
                    let dropout =
                        (mode == Mode::Train && rate > 0.0).then_some(DropoutKey { rate, site: site_of_attention });
                    let op = Attention {
                        heads: self.n_head,
                        kv_heads: self.n_head,
                        packed: true,
                        causal: true,
                        scale,
                        bias: None,
                        segmented: false,
                        dropout,
                        rows: ATTENTION_ROWS,
                    };
                    builder.push(op, &[qkv])?[0]
                }
            };
            let y = self.linear(builder, y, &block.attention_out)?;
            let y = dropout(builder, y, self.resid_pdrop, site(), mode)?;
            x = builder.apply(Add, &[x, y])?;
            builder.scope(format!("h{layer}/mlp"), number);
            let normed = self.norm(builder, x, &block.norm2)?;
            let up = self.linear(builder, normed, &block.up)?;
            let activated = builder.apply(Gelu, &[up])?;
            let y = self.linear(builder, activated, &block.down)?;
            let y = dropout(builder, y, self.resid_pdrop, site(), mode)?;
            x = builder.apply(Add, &[x, y])?;
        }
        builder.scope("head", None);
        self.norm(builder, x, &parameters.last_norm)
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

fn dropout(
    builder: &mut ProgramBuilder,
    x: TensorId,
    rate: f32,
    site: u32,
    mode: Mode,
) -> Result<TensorId, GraphError> {
    if mode == Mode::Train && rate > 0.0 {
        builder.apply(Dropout { key: DropoutKey { rate, site } }, &[x])
    } else {
        Ok(x)
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

impl Parameters {
    pub(super) fn head(&self) -> TensorId {
        self.token_table
    }
}
