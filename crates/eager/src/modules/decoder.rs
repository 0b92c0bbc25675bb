//! The decoders of transformers, from the model's description. Tensors are created and freed in the order of
//! `models/gpt2/modeling_gpt2.py` and `models/llama/modeling_llama.py`; the files of other families copy the latter with
//! the changes that `source.rs` lists.

mod attention;
mod balance;
mod block;
mod experts;
mod norm;
mod sinks;

use super::linear::Linear;
use super::loader::Loader;
use super::parts::{Model, Options, Outputs, attended_keys, causal_mask, headed_loss, positions, tokens};
use super::rotation;
use super::source::{Code, Source};
use crate::ops;
use crate::runtime::{DType, Rt, Tensor, checkpoint};
use crate::usage::Kind;
use crate::versions;
use attention::capped;
use balance::balanced;
use block::Block;
use norm::Norm;
use plimsoll_graph::models::description;
use plimsoll_trainers::{Attention, Loss, Run};
use std::collections::BTreeSet;
use std::rc::Rc;

struct Decoder {
    description: description::Decoder,
    tokens: Tensor,
    head: Linear,
    positions: Option<Tensor>,
    blocks: Vec<Rc<Block>>,
    norm: Norm,
    /// Frequencies of rotary positions, with scaling and the original ones, for all blocks or for each kind of block.
    frequencies: Vec<[Tensor; 2]>,
    /// Whether the mask of blocks without a window is created even if no block uses it.
    has_full_mask: bool,
    loss: Loss,
    /// The experts whose balance is part of the loss.
    balanced: Option<description::Experts>,
    options: Options,
    source: Source,
    trained: Vec<Tensor>,
    #[expect(dead_code, reason = "they are stored only to hold their memory")]
    mask_buffers: Vec<Tensor>,
}

/// The last part of a module's name.
fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// The model with its parameters.
pub(super) fn load(loader: &Loader, description: description::Decoder, source: &Source, run: &Run) -> Box<dyn Model> {
    let options = Options::new(loader.rt(), run, source);
    let width = description.width as u64;
    let table =
        |table: &description::Table| loader.table(&format!("{}.weight", table.name), &[table.rows as u64, width]);
    let loss = source.loss(run);
    let tokens = table(&description.tokens);
    let positions = description.positions.as_ref().map(table);
    let blocks = description.blocks.iter().enumerate().map(|(index, block)| {
        let path = format!("{}.{index}", description.block_list);
        Rc::new(Block::load(loader, &path, block, source, width, loss == Loss::Liger, &options))
    });
    let blocks = blocks.collect();
    let norm = Norm::load(loader, "", &description.last_norm, width, source);
    let head = match &description.head {
        None => tokens.clone(),
        Some(head) => loader.parameter(&format!("{}.weight", head.name), &[head.rows as u64, width]),
    };
    let head = Linear::head(loader, head);
    let frequencies = frequencies(loader, &description.blocks, source);
    let has_full_mask = !source.has_one_mask || description.blocks.iter().any(|b| b.attention.window.is_none());
    let trained = loader.trained();
    let longest = description.positions.as_ref().map(|table| table.rows as u64);
    let mask_buffers = match longest.filter(|_| versions::has_mask_buffers(&run.libraries)) {
        Some(longest) if source.code == Code::Gpt2 => {
            let buffer = |_| loader.weight("attn.bias", &[longest, longest], DType::Bool);
            description.blocks.iter().map(buffer).collect()
        }
        _ => vec![],
    };
    let mut experts = description.blocks.iter().filter_map(|block| block.feed_forward.experts);
    let balanced = experts.find(|experts| experts.balance.is_some());
    Box::new(Decoder {
        balanced,
        description,
        tokens,
        head,
        positions,
        blocks,
        norm,
        frequencies,
        has_full_mask,
        loss,
        options,
        source: *source,
        trained,
        mask_buffers,
    })
}

/// The frequencies of the blocks' rotary positions; none if no block has these.
fn frequencies(loader: &Loader, blocks: &[description::Block], source: &Source) -> Vec<[Tensor; 2]> {
    let rotated = blocks.iter().map(|block| &block.attention).filter(|attention| attention.rotary.is_some());
    let kinds = rotated.map(|attention| (source.has_angles_by_kind && attention.window.is_some(), attention.head_size));
    let each = |(_, head_size): (bool, usize)| {
        [(); 2].map(|()| loader.weight("model.rotary_emb", &[head_size as u64 / 2], DType::F32))
    };
    kinds.collect::<BTreeSet<_>>().into_iter().map(each).collect()
}

impl Decoder {
    /// The hidden states before the head (B, T, C), and the logits (N, E) of each router, if the loss needs them.
    fn hidden(&self, rt: &Rt, ids: &Tensor, mask: Option<&Tensor>) -> (Tensor, Vec<Tensor>) {
        let description = &self.description;
        // The embeddings live until the end of the forward pass.
        let is_scaled = description.embedding_scale.is_some() && !self.source.has_multipliers;
        let mut embedded = rt.module(last(description.tokens.name), || {
            let embedded = ops::embedding(&self.tokens, ids);
            self.options.embedded(if is_scaled { embedded.scale() } else { embedded })
        });
        if self.source.has_multipliers {
            embedded = embedded.scale();
        }
        let positions = positions(rt, self.options.length);
        let placed = self
            .positions
            .as_ref()
            .zip(description.positions)
            .map(|(weight, table)| rt.module(last(table.name), || ops::embedding(weight, &positions)));
        let mut x = placed.as_ref().map_or_else(|| embedded.clone(), |placed| embedded.add(placed));
        drop(mask.map(|mask| mask.to(DType::Bool)));
        let masks = self.masks(&embedded);
        if let Some(rate) = description.embedding_dropout.filter(|_| self.source.drops_embeddings) {
            x = rt.module("drop", || x.dropout(self.options.rate(rate)));
        }
        let each = |frequencies: &[Tensor; 2]| {
            rt.module("rotary_emb", || {
                rotation::angles(rt, self.options.length, frequencies[0].size(0), x.dtype(), &self.source)
            })
        };
        let angles = self.frequencies.iter().map(each).collect::<Vec<_>>();
        let mut router_logits = vec![];
        for (index, block) in self.blocks.iter().enumerate() {
            let name = format!("{}.{index}", last(description.block_list));
            let kind = usize::from(block.is_windowed());
            let mask = masks[kind].clone();
            let (block, rt_, angles) = (block.clone(), rt.clone(), angles.get(kind).or(angles.first()).cloned());
            let positions = positions.clone();
            let run = Rc::new(move |inputs: &[Tensor]| {
                // Blocks receive positions as an argument that they do not use.
                let _positions = &positions;
                let passed = rt_.module(&name, || block.forward(&rt_, &inputs[0], angles.as_ref(), mask.as_ref()));
                [Some(passed.result), passed.router_logits].into_iter().flatten().collect()
            });
            let mut results = checkpoint(rt, self.options.checkpointing, &[x], run).into_iter();
            x = results.next().expect("a block has a result");
            router_logits.extend(results);
        }
        let normed = rt.module(last(description.last_norm.name), || self.norm.forward(&x, self.loss == Loss::Liger));
        (normed, router_logits)
    }

    /// The masks of blocks without a window and with one: numbers for eager attention; booleans (B, 1, T, T) for
    /// PyTorch's kernels if a window excludes any key, since the kernels have no windows, or if the model separates
    /// documents. Source: `_ignore_causal_mask_sdpa` of transformers.
    fn masks(&self, embedded: &Tensor) -> [Option<Tensor>; 2] {
        let (batch, length) = (self.options.micro_batch, self.options.length);
        let of_documents = || {
            let mask = Tensor::new(embedded.rt(), &[batch, 1, length, length], DType::Bool, "bitwise_and");
            mask.mark(Kind::Input);
            Some(mask)
        };
        let full = match self.options.attention {
            _ if !self.has_full_mask => None,
            Attention::Eager => Some(causal_mask(embedded, false)),
            Attention::Sdpa | Attention::Efficient if self.options.masks_documents => of_documents(),
            Attention::Sdpa | Attention::Efficient | Attention::Flash2 => None,
        };
        let window = self.description.blocks.iter().find_map(|block| block.attention.window);
        let windowed = match window {
            None => {
                // The length of an unused window is not known here; the booleans for PyTorch's kernels are left out.
                let is_eager = self.options.attention == Attention::Eager;
                (is_eager && self.source.always_masks_windows).then(|| causal_mask(embedded, true))
            }
            Some(window) => self.window_mask(embedded, window as u64, of_documents),
        };
        [full, windowed]
    }

    /// The mask of blocks with a window.
    fn window_mask(&self, embedded: &Tensor, window: u64, of_documents: impl Fn() -> Option<Tensor>) -> Option<Tensor> {
        let (batch, length) = (self.options.micro_batch, self.options.length);
        match self.options.attention {
            Attention::Eager => Some(causal_mask(embedded, true)),
            Attention::Sdpa | Attention::Efficient if self.options.masks_documents => of_documents(),
            Attention::Sdpa | Attention::Efficient if length >= window => {
                Some(attended_keys(embedded, true).expand(&[batch, 1, length, length]))
            }
            Attention::Sdpa | Attention::Efficient | Attention::Flash2 => None,
        }
    }
}

impl Model for Decoder {
    fn inputs(&self, rt: &Rt) -> Vec<Tensor> {
        let tokens = |op| tokens(rt, self.options.micro_batch, self.options.length, op);
        // Only the loss on the balance of experts keeps the mask of tokens.
        let mask = self.balanced.filter(|_| !self.options.omits_mask).map(|_| tokens("attention_mask"));
        [Some(tokens("input_ids")), mask].into_iter().flatten().collect()
    }

    fn outputs(&self, rt: &Rt, inputs: &[Tensor]) -> Outputs {
        let ids = &inputs[0];
        let name = self.description.block_list.split('.').next().unwrap_or_default();
        let (hidden, router_logits) = rt.module(name, || self.hidden(rt, ids, inputs.get(1)));
        let changed = |logits: Tensor| {
            let is_scaled = self.source.has_multipliers || self.description.head_scale.is_some();
            let logits = if is_scaled { logits.scale() } else { logits };
            if self.description.logit_cap.is_some() { capped(logits) } else { logits }
        };
        let mut outputs = headed_loss(rt, self.loss, &hidden, &self.head, ids, &changed);
        if let Some(experts) = self.balanced {
            outputs.loss = rt.module("loss", || balanced(rt, &outputs.loss, &router_logits, &experts, inputs.get(1)));
            outputs.others.extend(router_logits);
        }
        outputs
    }

    fn trained(&self) -> &[Tensor] {
        &self.trained
    }
}
