//! GPT-2 as transformers has it: `models/gpt2/modeling_gpt2.py`.

use super::linear::Linear;
use super::loader::Loader;
use super::parts::{Model, Options, causal_mask, headed_loss, new_gelu, positions, tokens};
use crate::ops::{self, Sdpa};
use crate::runtime::{Rt, Tensor, checkpoint};
use plimsoll_graph::models::Gpt2Config;
use plimsoll_trainers::{Attention, Loss, Run};
use std::rc::Rc;

struct Norm {
    weight: Tensor,
    bias: Tensor,
}

struct Block {
    norms: [Norm; 2],
    attention: [Linear; 2],
    mlp: [Linear; 2],
    heads: u64,
    attention_rate: f32,
    residual_rate: f32,
    kernel: Attention,
}

struct Gpt2 {
    tokens: Tensor,
    head: Linear,
    positions: Tensor,
    blocks: Vec<Rc<Block>>,
    norm: Norm,
    embedding_rate: f32,
    options: Options,
    trained: Vec<Tensor>,
}

impl Norm {
    fn load(loader: &Loader, name: &str, channels: u64) -> Self {
        let weight = loader.parameter(&format!("{name}.weight"), &[channels]);
        Self { weight, bias: loader.parameter(&format!("{name}.bias"), &[channels]) }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        ops::layer_norm(x, &self.weight, &self.bias)
    }
}

impl Block {
    /// (B, T, C) -> (B, T, C).
    fn forward(&self, rt: &Rt, x: &Tensor, mask: Option<&Tensor>) -> Tensor {
        let normed = rt.module("ln_1", || self.norms[0].forward(x));
        let attended = rt.module("attn", || self.attend(rt, &normed, mask));
        let x = attended.add(x);
        drop(normed);
        let normed = rt.module("ln_2", || self.norms[1].forward(&x));
        let fed = rt.module("mlp", || self.feed(rt, &normed));
        x.add(&fed)
    }

    fn attend(&self, rt: &Rt, x: &Tensor, mask: Option<&Tensor>) -> Tensor {
        let [batch, length, channels] = [x.size(0), x.size(1), x.size(2)];
        let projected = self.attention[0].forward(rt, "c_attn", x);
        let head = |part: &Tensor| part.view(&[batch, length, self.heads, channels / self.heads]).transpose(1, 2);
        let parts = projected.split(3, 2);
        drop(projected);
        let [q, k, v] = [&parts[0], &parts[1], &parts[2]].map(head);
        drop(parts);
        // Eager attention returns its weights, too.
        let (mut attended, _weights) = match self.kernel {
            Attention::Eager => self.attend_eagerly(&q, &k, &v, mask),
            Attention::Sdpa | Attention::Flash2 => {
                let options = Sdpa { causal: true, dropout: self.attention_rate };
                let attended = ops::scaled_dot_product_attention(&q, &k, &v, mask, options);
                (attended.transpose(1, 2).contiguous(), None)
            }
        };
        attended = attended.reshape(&[batch, length, channels]).contiguous();
        let projected = self.attention[1].forward(rt, "c_proj", &attended);
        drop(attended);
        projected.dropout(self.residual_rate)
    }

    fn attend_eagerly(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> (Tensor, Option<Tensor>) {
        let mut weights = q.matmul(&k.transpose(-1, -2)).scale();
        if let Some(mask) = mask {
            weights = weights.add(mask);
        }
        weights = weights.softmax(None);
        weights = weights.to(v.dtype());
        weights = weights.dropout(self.attention_rate);
        (weights.matmul(v).transpose(1, 2), Some(weights))
    }

    fn feed(&self, rt: &Rt, x: &Tensor) -> Tensor {
        let mut x = self.mlp[0].forward(rt, "c_fc", x);
        x = rt.module("act", || new_gelu(&x));
        x = self.mlp[1].forward(rt, "c_proj", &x);
        x.dropout(self.residual_rate)
    }
}

/// The model with its parameters.
pub(super) fn load(loader: &Loader, config: &Gpt2Config, run: &Run) -> Box<dyn Model> {
    let options = Options::new(run);
    let channels = config.n_embd as u64;
    let inner = config.n_inner.unwrap_or(4 * config.n_embd) as u64;
    let tokens = loader.table("transformer.wte.weight", &[config.vocab_size as u64, channels]);
    let positions = loader.table("transformer.wpe.weight", &[config.n_positions as u64, channels]);
    let block = |index: usize| {
        let name = |part: &str| format!("transformer.h.{index}.{part}");
        let first = Norm::load(loader, &name("ln_1"), channels);
        let attention = [
            Linear::load_conv1d(loader, &name("attn.c_attn"), channels, 3 * channels),
            Linear::load_conv1d(loader, &name("attn.c_proj"), channels, channels),
        ];
        let second = Norm::load(loader, &name("ln_2"), channels);
        let mlp = [
            Linear::load_conv1d(loader, &name("mlp.c_fc"), channels, inner),
            Linear::load_conv1d(loader, &name("mlp.c_proj"), inner, channels),
        ];
        Rc::new(Block {
            norms: [first, second],
            attention,
            mlp,
            heads: config.n_head as u64,
            attention_rate: options.rate(config.attn_pdrop),
            residual_rate: options.rate(config.resid_pdrop),
            kernel: options.attention,
        })
    };
    let blocks = (0..config.n_layer).map(block).collect();
    let norm = Norm::load(loader, "transformer.ln_f", channels);
    let embedding_rate = options.rate(config.embd_pdrop);
    let head = Linear::head(loader, tokens.clone());
    Box::new(Gpt2 { tokens, head, positions, blocks, norm, embedding_rate, options, trained: loader.trained() })
}

impl Gpt2 {
    fn hidden(&self, rt: &Rt, ids: &Tensor) -> Tensor {
        let embedded = rt.module("wte", || self.options.embedded(ops::embedding(&self.tokens, ids)));
        let positions = positions(rt, self.options.length);
        let placed = rt.module("wpe", || ops::embedding(&self.positions, &positions));
        let mut x = embedded.add(&placed);
        let mask = (self.options.attention == Attention::Eager).then(|| causal_mask(&embedded, false));
        x = rt.module("drop", || x.dropout(self.embedding_rate));
        for (index, block) in self.blocks.iter().enumerate() {
            let name = format!("h.{index}");
            let (block, rt_, mask, positions) = (block.clone(), rt.clone(), mask.clone(), positions.clone());
            let run = Rc::new(move |inputs: &[Tensor]| {
                // Blocks are told positions, which they have no use for.
                let _positions = &positions;
                vec![rt_.module(&name, || block.forward(&rt_, &inputs[0], mask.as_ref()))]
            });
            x = checkpoint(rt, self.options.checkpointing, &[x], run).swap_remove(0);
        }
        rt.module("ln_f", || self.norm.forward(&x))
    }
}

impl Model for Gpt2 {
    fn inputs(&self, rt: &Rt) -> Vec<Tensor> {
        vec![tokens(rt, self.options.micro_batch, self.options.length, "input_ids")]
    }

    fn loss(&self, rt: &Rt, inputs: &[Tensor]) -> Tensor {
        let ids = &inputs[0];
        let hidden = rt.module("transformer", || self.hidden(rt, ids));
        headed_loss(rt, Loss::Plain, &hidden, &self.head, ids)
    }

    fn trained(&self) -> &[Tensor] {
        &self.trained
    }
}
