//! A [`Decoder`] in a graph: its parameters, and its forward pass for training, evaluation and sampling.

use super::description::{Block, Decoder, Norms};
use super::parts::{Attended, AttentionWeights, Dropouts, FeedForwardWeights, NormWeights, declare_table, scaled};
use super::{CacheShapes, Caches, Inputs, Mode};
use crate::ops::{Add, Embedding, Positions};
use crate::{Graph, GraphError, ProgramBuilder, TensorId};

/// The parameters in a graph, and the description that declares them.
#[derive(Debug, Clone)]
pub struct DecoderWeights {
    model: Decoder,
    tokens: TensorId,
    positions: Option<TensorId>,
    blocks: Vec<BlockWeights>,
    last_norm: NormWeights,
    pub(super) head: TensorId,
}

#[derive(Debug, Clone)]
struct BlockWeights {
    attention_norms: PartNorms,
    attention: AttentionWeights,
    feed_forward_norms: PartNorms,
    feed_forward: FeedForwardWeights,
}

/// The norms of a block's part: before it, and after it.
#[derive(Debug, Clone)]
struct PartNorms {
    before: Option<NormWeights>,
    after: Option<NormWeights>,
}

impl PartNorms {
    fn declare(graph: &mut Graph, path: &str, norms: &Norms, width: usize) -> Self {
        let mut declare = |norm: Option<_>| norm.map(|norm| NormWeights::declare(graph, path, norm, width));
        Self { before: declare(norms.before), after: declare(norms.after) }
    }
}

/// x after a norm, or x itself if there is none.
fn normed(builder: &mut ProgramBuilder, norm: Option<&NormWeights>, x: TensorId) -> Result<TensorId, GraphError> {
    norm.map_or(Ok(x), |norm| norm.apply(builder, x))
}

impl BlockWeights {
    fn declare(graph: &mut Graph, path: &str, block: &Block, width: usize) -> Self {
        let attention_norms = PartNorms::declare(graph, path, &block.attention_norms, width);
        let attention = AttentionWeights::declare(graph, path, &block.attention);
        let norms = |graph: &mut Graph| PartNorms::declare(graph, path, &block.feed_forward_norms, width);
        let feed_forward = |graph: &mut Graph| FeedForwardWeights::declare(graph, path, &block.feed_forward);
        let (feed_forward_norms, feed_forward) = if block.second_norm_is_last {
            let feed_forward = feed_forward(graph);
            (norms(graph), feed_forward)
        } else {
            (norms(graph), feed_forward(graph))
        };
        Self { attention_norms, attention, feed_forward_norms, feed_forward }
    }
}

impl DecoderWeights {
    /// Declares the parameters.
    pub(super) fn declare(graph: &mut Graph, model: Decoder) -> Self {
        let width = model.width;
        let tokens = declare_table(graph, &model.tokens, width);
        let positions = model.positions.map(|table| declare_table(graph, &table, width));
        let blocks =
            model.blocks.iter().enumerate().map(|(layer, block)| {
                BlockWeights::declare(graph, &format!("{}.{layer}", model.block_list), block, width)
            });
        let blocks = blocks.collect();
        let last_norm = NormWeights::declare(graph, "", model.last_norm, width);
        let head = model.head.map_or(tokens, |head| declare_table(graph, &head, width));
        Self { model, tokens, positions, blocks, last_norm, head }
    }

    /// Coefficient of the loss on the balance of experts, if training adds it.
    pub(super) fn balance(&self) -> Option<f32> {
        self.model.blocks.iter().find_map(|block| block.feed_forward.experts?.balance)
    }

    /// Soft limit of the logits.
    pub(super) fn logit_cap(&self) -> Option<f32> {
        self.model.logit_cap
    }

    /// Appends the forward pass up to the input of the output head: (B, T, C).
    pub(super) fn forward(
        &self,
        builder: &mut ProgramBuilder,
        inputs: &Inputs,
        mode: Mode,
        caches: &Caches,
    ) -> Result<TensorId, GraphError> {
        let mut dropouts = Dropouts::new(mode);
        builder.scope("embedding", None);
        let mut x = builder.apply(Embedding, &[inputs.tokens, self.tokens])?;
        x = scaled(builder, x, self.model.embedding_scale)?;
        if let Some(table) = self.positions {
            x = match inputs.positions {
                None => builder.apply(Positions { offset: mode == Mode::Cached, same: false }, &[x, table])?,
                Some(positions) => {
                    let placed = builder.apply(Embedding, &[positions, table])?;
                    builder.apply(Add, &[x, placed])?
                }
            };
        }
        x = dropouts.apply(builder, x, self.model.embedding_dropout)?;
        for (layer, (block, weights)) in self.model.blocks.iter().zip(&self.blocks).enumerate() {
            let number = u32::try_from(layer).ok();
            builder.scope(format!("h{layer}/attention"), number);
            let y = normed(builder, weights.attention_norms.before.as_ref(), x)?;
            let cache = caches.own.get(layer).copied();
            let streams = weights.attention.streams(builder, y, y, cache)?;
            let segments = inputs.segments.map(|segments| [segments, segments]);
            let attended = Attended { bias_table: None, segments, cache };
            let y = weights.attention.attend(builder, &streams, attended, &mut dropouts)?;
            let y = normed(builder, weights.attention_norms.after.as_ref(), y)?;
            let y = scaled(builder, y, block.residual_scale)?;
            let y = dropouts.apply(builder, y, block.residual_dropout)?;
            x = builder.apply(Add, &[x, y])?;
            builder.scope(format!("h{layer}/mlp"), number);
            let y = normed(builder, weights.feed_forward_norms.before.as_ref(), x)?;
            let y = weights.feed_forward.apply(builder, y, &mut dropouts)?;
            let y = normed(builder, weights.feed_forward_norms.after.as_ref(), y)?;
            let y = scaled(builder, y, block.residual_scale)?;
            let y = dropouts.apply(builder, y, block.residual_dropout)?;
            x = builder.apply(Add, &[x, y])?;
        }
        builder.scope("head", None);
        x = self.last_norm.apply(builder, x)?;
        scaled(builder, x, self.model.head_scale)
    }
}

/// Shapes of the keys and values of `rows` samples, for `positions` tokens.
pub(super) fn cache_shapes(model: &Decoder, rows: usize, positions: usize) -> CacheShapes {
    let shapes = model.blocks.iter().map(|block| {
        let shape = vec![rows, positions, block.attention.kv_width()];
        [shape.clone(), shape]
    });
    CacheShapes { own: shapes.collect(), source: vec![] }
}
