//! Llama, Mistral and Qwen2 as transformers has them: `models/llama/modeling_llama.py`.

use super::linear::Linear;
use super::loader::Loader;
use super::parts::{Model, Options, causal_mask, headed_loss, positions, seen_keys, tokens};
use crate::ops::{self, Sdpa};
use crate::runtime::{DType, Rt, Tensor, checkpoint};
use plimsoll_graph::models::{LlamaConfig, Variant};
use plimsoll_trainers::{Attention, Loss, Run};
use std::rc::Rc;

/// Sizes of attention.
#[derive(Clone, Copy)]
struct Heads {
    queries: u64,
    keys: u64,
    channels: u64,
    rate: f32,
    kernel: Attention,
}

struct Block {
    norms: [Tensor; 2],
    /// Queries, keys, values, and what they are put together by.
    attention: [Linear; 4],
    /// Gate, up and down.
    mlp: [Linear; 3],
    heads: Heads,
    /// Whether attention is to the last tokens only.
    windowed: bool,
    /// Whether Liger's kernels are in place of norms, activations and rotations.
    liger: bool,
}

struct Llama {
    tokens: Tensor,
    head: Linear,
    blocks: Vec<Rc<Block>>,
    norm: Tensor,
    /// As they are used, and as they were before any stretch.
    frequencies: [Tensor; 2],
    /// The tokens that blocks with a window attend to.
    window: Option<u64>,
    /// Whether the mask of blocks without a window is made, even if there are no such blocks.
    has_full_mask: bool,
    options: Options,
    trained: Vec<Tensor>,
}

/// RMSNorm in single precision: x (B, T, C), weight (C,) -> (B, T, C).
fn rms_norm(weight: &Tensor, x: &Tensor, liger: bool) -> Tensor {
    if liger {
        return ops::liger::rms_norm(x, weight);
    }
    let dtype = x.dtype();
    let mut x = x.to(DType::F32);
    let mut variance = x.pow();
    variance = variance.mean_last();
    let shifted = variance.shift();
    let scale = shifted.rsqrt();
    drop(shifted);
    x = x.mul(&scale);
    drop(scale);
    weight.mul(&x.to(dtype))
}

/// The second half of the channels, negated, before the first.
fn rotate_half(x: &Tensor) -> Tensor {
    let half = x.size(-1) / 2;
    let [first, second] = [x.narrow(-1, half), x.narrow(-1, half)];
    ops::cat(&[&second.neg(), &first], -1)
}

/// Keys or values (B, K, T, D), each repeated for the heads that share it: (B, H, T, D).
fn repeat_kv(x: &Tensor, times: u64) -> Tensor {
    if times == 1 {
        return x.clone();
    }
    let [batch, heads, length, channels] = [x.size(0), x.size(1), x.size(2), x.size(3)];
    let expanded = x.unsqueeze(2).expand(&[batch, heads, times, length, channels]);
    expanded.reshape(&[batch, heads * times, length, channels])
}

impl Block {
    /// (B, T, C) -> (B, T, C). `angles`: cosines and sines (1, T, D).
    fn forward(&self, rt: &Rt, x: &Tensor, angles: &[Tensor; 2], mask: Option<&Tensor>) -> Tensor {
        let normed = rt.module("input_layernorm", || rms_norm(&self.norms[0], x, self.liger));
        let (attended, _weights) = rt.module("self_attn", || self.attend(rt, &normed, angles, mask));
        drop(normed);
        let x = x.add(&attended);
        drop(attended);
        let normed = rt.module("post_attention_layernorm", || rms_norm(&self.norms[1], &x, self.liger));
        let fed = rt.module("mlp", || self.feed(rt, &normed));
        drop(normed);
        x.add(&fed)
    }

    /// (B, T, C) -> (B, T, C), and the weights where they are computed, which the block has until its end.
    fn attend(&self, rt: &Rt, x: &Tensor, angles: &[Tensor; 2], mask: Option<&Tensor>) -> (Tensor, Option<Tensor>) {
        let [batch, length] = [x.size(0), x.size(1)];
        let Heads { queries, keys, channels, rate, kernel } = self.heads;
        let project = |index: usize, name, heads| {
            let projected = self.attention[index].forward(rt, name, x);
            projected.view(&[batch, length, heads, channels]).transpose(1, 2)
        };
        let mut q = project(0, "q_proj", queries);
        let mut k = project(1, "k_proj", keys);
        let v = project(2, "v_proj", keys);
        let [cos, sin] = angles.each_ref().map(|angle| angle.unsqueeze(1));
        let rotate = |x: &Tensor| {
            let kept = x.mul(&cos);
            let mut turned = rotate_half(x);
            turned = turned.mul(&sin);
            kept.add(&turned)
        };
        (q, k) = match self.liger {
            true => ops::liger::rotate(&q, &k, angles).into(),
            false => (rotate(&q), rotate(&k)),
        };
        let times = queries / keys;
        let (mut attended, weights) = match kernel {
            Attention::Eager => {
                let (k, v) = (repeat_kv(&k, times), repeat_kv(&v, times));
                let mut weights = q.matmul(&k.transpose(2, 3));
                weights = weights.scale();
                if let Some(mask) = mask {
                    weights = weights.add(mask);
                }
                weights = weights.softmax(Some(DType::F32)).to(q.dtype());
                weights = weights.dropout(rate);
                (weights.matmul(&v).transpose(1, 2).contiguous(), Some(weights))
            }
            Attention::Sdpa | Attention::Flash2 => {
                let options = Sdpa { causal: true, dropout: rate };
                // With a mask PyTorch's kernels want as many heads of keys: `use_gqa_in_sdpa` of transformers.
                let times = if mask.is_some() { times } else { 1 };
                let (k, v) = (repeat_kv(&k, times), repeat_kv(&v, times));
                let attended = ops::scaled_dot_product_attention(&q, &k, &v, mask, options);
                (attended.transpose(1, 2).contiguous(), None)
            }
        };
        attended = attended.reshape(&[batch, length, queries * channels]).contiguous();
        (self.attention[3].forward(rt, "o_proj", &attended), weights)
    }

    fn feed(&self, rt: &Rt, x: &Tensor) -> Tensor {
        let [gate, up, down] = &self.mlp;
        if self.liger {
            let product = ops::liger::silu_mul(&gate.forward(rt, "gate_proj", x), &up.forward(rt, "up_proj", x));
            return down.forward(rt, "down_proj", &product);
        }
        let gated = {
            let gate = gate.forward(rt, "gate_proj", x);
            rt.module("act_fn", || gate.activation("silu"))
        };
        let product = gated.mul(&up.forward(rt, "up_proj", x));
        drop(gated);
        down.forward(rt, "down_proj", &product)
    }
}

/// The model with its parameters.
pub(super) fn load(loader: &Loader, config: &LlamaConfig, run: &Run) -> Box<dyn Model> {
    let options = Options::new(run);
    let [channels, inner, vocabulary] =
        [config.hidden_size, config.intermediate_size, config.vocab_size].map(|size| size as u64);
    let heads = Heads {
        queries: config.num_attention_heads as u64,
        keys: config.num_key_value_heads as u64,
        channels: config.head_dim as u64,
        rate: options.rate(config.attention_dropout),
        kernel: options.attention,
    };
    let tokens = loader.table("model.embed_tokens.weight", &[vocabulary, channels]);
    let block = |index: usize| {
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let linear = |part: &str, inputs, outputs, bias| Linear::load(loader, &name(part), inputs, outputs, bias);
        let attention = [
            linear("self_attn.q_proj", channels, heads.queries * heads.channels, config.qkv_bias),
            linear("self_attn.k_proj", channels, heads.keys * heads.channels, config.qkv_bias),
            linear("self_attn.v_proj", channels, heads.keys * heads.channels, config.qkv_bias),
            linear("self_attn.o_proj", heads.queries * heads.channels, channels, config.output_bias),
        ];
        let mlp = [
            linear("mlp.gate_proj", channels, inner, config.mlp_bias),
            linear("mlp.up_proj", channels, inner, config.mlp_bias),
            linear("mlp.down_proj", inner, channels, config.mlp_bias),
        ];
        let norm = |part: &str| loader.parameter(&name(part), &[channels]);
        let norms = [norm("input_layernorm.weight"), norm("post_attention_layernorm.weight")];
        let windowed = config.window(index).is_some();
        Rc::new(Block { norms, attention, mlp, heads, windowed, liger: options.loss == Loss::Liger })
    };
    let blocks = (0..config.num_hidden_layers).map(block).collect();
    let norm = loader.parameter("model.norm.weight", &[channels]);
    let head = match config.tie_word_embeddings {
        true => tokens.clone(),
        false => loader.parameter("lm_head.weight", &[vocabulary, channels]),
    };
    let head = Linear::head(loader, head);
    let frequencies = [(); 2].map(|()| loader.weight("model.rotary_emb", &[heads.channels / 2], DType::F32));
    // Mistral has one mask for all blocks, Qwen2 one of each kind.
    let window = config.sliding_window.map(|window| window as u64);
    let has_full_mask = window.is_none() || config.variant != Variant::Mistral;
    let trained = loader.trained();
    Box::new(Llama { tokens, head, blocks, norm, frequencies, window, has_full_mask, options, trained })
}

impl Llama {
    fn hidden(&self, rt: &Rt, ids: &Tensor) -> Tensor {
        // It is there to the end of the forward pass.
        let embedded = rt.module("embed_tokens", || self.options.embedded(ops::embedding(&self.tokens, ids)));
        let mut x = embedded.clone();
        let positions = positions(rt, self.options.length);
        let masks = self.masks(&x);
        let angles = rt.module("rotary_emb", || self.angles(rt, x.dtype()));
        for (index, block) in self.blocks.iter().enumerate() {
            let name = format!("layers.{index}");
            let mask = masks[usize::from(block.windowed)].clone();
            let (block, rt_, angles) = (block.clone(), rt.clone(), angles.clone());
            let positions = positions.clone();
            let run = Rc::new(move |inputs: &[Tensor]| {
                // Blocks are told positions, which only their angles were made of.
                let _positions = &positions;
                vec![rt_.module(&name, || block.forward(&rt_, &inputs[0], &angles, mask.as_ref()))]
            });
            x = checkpoint(rt, self.options.checkpointing, &[x], run).swap_remove(0);
        }
        rt.module("norm", || rms_norm(&self.norm, &x, self.options.loss == Loss::Liger))
    }

    /// The masks of blocks without a window and with one: numbers for eager attention, booleans (B, 1, T, T) for PyTorch's
    /// kernels where a window hides something, as they have no windows. Source: `_ignore_causal_mask_sdpa` of transformers.
    fn masks(&self, embedded: &Tensor) -> [Option<Tensor>; 2] {
        let (batch, length) = (self.options.micro_batch, self.options.length);
        let eager = self.options.attention == Attention::Eager;
        let full = (eager && self.has_full_mask).then(|| causal_mask(embedded, false));
        let windowed = self.window.and_then(|window| match self.options.attention {
            Attention::Eager => Some(causal_mask(embedded, true)),
            Attention::Sdpa if length >= window => Some(seen_keys(embedded, true).expand(&[batch, 1, length, length])),
            Attention::Sdpa | Attention::Flash2 => None,
        });
        [full, windowed]
    }

    /// Cosines and sines of the positions: (1, T, D) each, in the hidden states' type.
    fn angles(&self, rt: &Rt, dtype: DType) -> [Tensor; 2] {
        let half = self.frequencies[0].size(0);
        let new = |channels, op| Tensor::new(rt, &[1, self.options.length, channels], DType::F32, op);
        let cast = new(1, "_to_copy");
        let _products = new(half, "mul");
        drop(cast);
        let both = new(2 * half, "cat");
        let angles = ["cos", "sin"].map(|op| {
            let mut angle = both.empty_like(DType::F32, op);
            angle = angle.scale();
            angle
        });
        angles.each_ref().map(|angle| angle.to(dtype))
    }
}

impl Model for Llama {
    fn inputs(&self, rt: &Rt) -> Vec<Tensor> {
        vec![tokens(rt, self.options.micro_batch, self.options.length, "input_ids")]
    }

    fn loss(&self, rt: &Rt, inputs: &[Tensor]) -> Tensor {
        let ids = &inputs[0];
        let hidden = rt.module("model", || self.hidden(rt, ids));
        headed_loss(rt, self.options.loss, &hidden, &self.head, ids)
    }

    fn trained(&self) -> &[Tensor] {
        &self.trained
    }
}
