//! The encoders of transformers in sentence-transformers: a batch of pairs of texts, with its contrastive loss.
//! Source: `models/bert/modeling_bert.py`, `models/modernbert/modeling_modernbert.py`; the loss is in `contrast.rs`.
//!
//! Both texts of a pair pass through the model separately, each column padded to its longest text, so that attention
//! needs a mask.

mod block;
mod contrast;
mod mask;

use super::linear::Linear;
use super::loader::Loader;
use super::parts::{Model, Options, Outputs, linear, tokens};
use super::rotation;
use super::source::Source;
use crate::ops;
use crate::runtime::{DType, Rt, Tensor, checkpoint};
use block::{Block, LayerNorm};
use plimsoll_graph::models::description;
use plimsoll_graph::ops::WeightLayout;
use plimsoll_trainers::Run;
use std::collections::BTreeSet;
use std::rc::Rc;

struct Encoder {
    description: description::Encoder,
    tokens: Tensor,
    positions: Option<Tensor>,
    token_types: Option<Tensor>,
    embedding_norm: LayerNorm,
    blocks: Vec<Rc<Block>>,
    last_norm: Option<LayerNorm>,
    /// A layer for the first token, whose result the loss does not use.
    pooler: Option<Linear>,
    /// Frequencies of rotary positions, of each kind of block.
    frequencies: Vec<[Tensor; 2]>,
    options: Options,
    source: Source,
    trained: Vec<Tensor>,
    /// Positions and types of tokens.
    numbers: Vec<Tensor>,
}

/// The model with its parameters.
pub(super) fn load(loader: &Loader, description: description::Encoder, source: &Source, run: &Run) -> Box<dyn Model> {
    let options = Options::new(loader.rt(), run, source);
    let width = description.width as u64;
    let table =
        |table: &description::Table| loader.table(&format!("{}.weight", table.name), &[table.rows as u64, width]);
    let tokens = table(&description.tokens);
    let positions = description.positions.as_ref().map(table);
    let token_types = description.token_types.as_ref().map(table);
    let embedding_norm = LayerNorm::load(loader, "", &description.embedding_norm, width);
    let blocks = description.blocks.iter().enumerate().map(|(index, block)| {
        let path = format!("{}.{index}", description.block_list);
        Rc::new(Block::load(loader, &path, block, &description, &options))
    });
    let blocks = blocks.collect();
    let last_norm = description.last_norm.as_ref().map(|norm| LayerNorm::load(loader, "", norm, width));
    // The pooler's parameters never get a gradient, and so no state of the optimizer.
    let trained = loader.trained();
    let dense = description::Linear {
        name: "dense",
        inputs: description.width,
        outputs: description.width,
        layout: WeightLayout::OutIn,
        bias: true,
        deviation: 0.0,
    };
    let pooler = source.has_pooler.then(|| linear(loader, "pooler", &dense));
    let frequencies = frequencies(loader, &description.blocks);
    let longest = [description.max_positions as u64];
    let number = |name: &&str| loader.weight(name, &longest, DType::I64);
    let names: &[&str] = if positions.is_some() { &["position_ids", "token_type_ids"] } else { &[] };
    let numbers = names.iter().map(number).collect();
    Box::new(Encoder {
        description,
        tokens,
        positions,
        token_types,
        embedding_norm,
        blocks,
        last_norm,
        pooler,
        frequencies,
        options,
        source: *source,
        trained,
        numbers,
    })
}

/// The frequencies of each kind of block, without a window and with one, of which there are blocks; none if no block has
/// rotary positions.
fn frequencies(loader: &Loader, blocks: &[description::EncoderBlock]) -> Vec<[Tensor; 2]> {
    let attention = blocks.iter().map(|block| &block.attention);
    let rotated = attention.filter(|attention| attention.rotary.is_some());
    let kinds = rotated.map(|attention| (attention.window.is_some(), attention.head_size)).collect::<BTreeSet<_>>();
    let each = |(_, head_size)| [(); 2].map(|()| loader.weight("rotary_emb", &[head_size as u64 / 2], DType::F32));
    kinds.into_iter().map(each).collect()
}

/// A column of texts: its tokens, its mask of tokens, and their types.
struct Column<'a> {
    ids: &'a Tensor,
    mask: &'a Tensor,
    types: Option<&'a Tensor>,
}

impl Encoder {
    /// The hidden states of a column: (B, T, C).
    fn hidden(&self, rt: &Rt, column: &Column) -> Tensor {
        let counted = self.positions.is_none();
        let _positions = counted.then(|| Tensor::new(rt, &[self.options.length], DType::I64, "arange"));
        let mut x = rt.module("embeddings", || self.embedded(column));
        // Variables hold the embeddings until the end.
        let _embedded = x.clone();
        let masks = self.masks(&x, column.mask);
        let angles = rt.module("rotary_emb", || {
            let each = |[half, _]: &[Tensor; 2]| {
                rotation::angles(rt, self.options.length, half.size(0), x.dtype(), &self.source)
            };
            self.frequencies.iter().map(each).collect::<Vec<_>>()
        });
        for (index, block) in self.blocks.iter().enumerate() {
            let name = format!("{}.{index}", self.description.block_list);
            let kind = usize::from(block.is_windowed());
            let (mask, angles) = (masks[kind].clone(), angles.get(kind).or(angles.first()).cloned());
            let (block, rt_) = (block.clone(), rt.clone());
            let run = Rc::new(move |inputs: &[Tensor]| {
                vec![rt_.module(&name, || block.forward(&rt_, &inputs[0], angles.as_ref(), mask.as_ref()))]
            });
            x = checkpoint(rt, self.options.checkpointing, &[x], run).swap_remove(0);
        }
        if let Some(norm) = &self.last_norm {
            x = norm.forward(rt, &x);
        }
        drop(self.pooler.as_ref().map(|pooler| {
            let first = x.narrow(1, 1).reshape(&[x.size(0), x.size(2)]);
            let pooled = pooler.forward(rt, "pooler", &first);
            pooled.activation_by_result("tanh")
        }));
        x
    }

    /// The sum of the embeddings after its norm and its dropout: (B, T, C).
    fn embedded(&self, column: &Column) -> Tensor {
        let of_tokens = self.options.embedded(ops::embedding(&self.tokens, column.ids));
        let rows = |table: &Tensor, numbers: &Tensor| ops::embedding(table, numbers);
        let of_types = self.token_types.as_ref().zip(column.types).map(|(table, types)| rows(table, types));
        let mut sum = of_types.as_ref().map_or_else(|| of_tokens.clone(), |types| of_tokens.add(types));
        let numbers = self.numbers.first().map(|numbers| numbers.narrow(0, self.options.length).unsqueeze(0));
        let placed = self.positions.as_ref().zip(numbers).map(|(table, numbers)| rows(table, &numbers));
        if let Some(placed) = &placed {
            sum = sum.add(placed);
        }
        sum = self.embedding_norm.apply(&sum);
        sum.dropout(self.options.rate(self.description.embedding_dropout))
    }

    /// The masks of blocks without a window and with one.
    fn masks(&self, x: &Tensor, mask: &Tensor) -> [Option<Tensor>; 2] {
        // ModernBERT creates both, even if no block uses one of them.
        let has_both = self.positions.is_none();
        [false, true]
            .map(|windowed| (!windowed || has_both).then(|| mask::of(x, mask, windowed, self.options.attention)))
    }
}

impl Model for Encoder {
    fn inputs(&self, rt: &Rt) -> Vec<Tensor> {
        let types = self.token_types.as_ref().map(|_| "token_type_ids");
        let names = [Some("input_ids"), Some("attention_mask"), types];
        let column = || names.iter().flatten().map(|op| tokens(rt, self.options.micro_batch, self.options.length, op));
        column().chain(column()).collect()
    }

    fn outputs(&self, rt: &Rt, inputs: &[Tensor]) -> Outputs {
        let columns = inputs.chunks(inputs.len() / 2);
        let embeddings = columns.map(|column| {
            let column = Column { ids: &column[0], mask: &column[1], types: column.get(2) };
            let hidden = self.hidden(rt, &column);
            let pooled = rt.module("pooling", || contrast::pooled(&hidden, column.mask));
            (pooled, hidden)
        });
        let (embeddings, _hidden): (Vec<_>, Vec<_>) = embeddings.unzip();
        Outputs { loss: rt.module("loss", || contrast::loss(rt, &embeddings)), others: vec![] }
    }

    fn trained(&self) -> &[Tensor] {
        &self.trained
    }
}
