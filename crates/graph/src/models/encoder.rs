//! An [`Encoder`] in a graph: its parameters, and its forward pass.

use super::Mode;
use super::description::{Encoder, EncoderBlock};
use super::parts::{Attended, AttentionWeights, Dropouts, FeedForwardWeights, NormWeights, declare_table};
use crate::ops::{Add, Embedding, Positions};
use crate::{Graph, GraphError, ProgramBuilder, TensorId};

/// The parameters in a graph, and the description that declares them.
#[derive(Debug, Clone)]
pub struct EncoderWeights {
    model: Encoder,
    tokens: TensorId,
    /// The tables of positions and of types of tokens.
    positions: Option<TensorId>,
    token_types: Option<TensorId>,
    embedding_norm: NormWeights,
    blocks: Vec<BlockWeights>,
    last_norm: Option<NormWeights>,
}

#[derive(Debug, Clone)]
struct BlockWeights {
    attention_norm: Option<NormWeights>,
    attention: AttentionWeights,
    feed_forward_norm: NormWeights,
    feed_forward: FeedForwardWeights,
}

impl BlockWeights {
    fn declare(graph: &mut Graph, path: &str, block: &EncoderBlock, width: usize) -> Self {
        let attention = AttentionWeights::declare(graph, path, &block.attention);
        let attention_norm = block.attention_norm.map(|norm| NormWeights::declare(graph, path, norm, width));
        let feed_forward = FeedForwardWeights::declare(graph, path, &block.feed_forward);
        let feed_forward_norm = NormWeights::declare(graph, path, block.feed_forward_norm, width);
        Self { attention_norm, attention, feed_forward_norm, feed_forward }
    }
}

impl EncoderWeights {
    /// Declares the parameters.
    pub(super) fn declare(graph: &mut Graph, model: Encoder) -> Self {
        let width = model.width;
        let tokens = declare_table(graph, &model.tokens, width);
        let positions = model.positions.map(|table| declare_table(graph, &table, width));
        let token_types = model.token_types.map(|table| declare_table(graph, &table, width));
        let embedding_norm = NormWeights::declare(graph, "", model.embedding_norm, width);
        let blocks =
            model.blocks.iter().enumerate().map(|(layer, block)| {
                BlockWeights::declare(graph, &format!("{}.{layer}", model.block_list), block, width)
            });
        let blocks = blocks.collect();
        let last_norm = model.last_norm.map(|norm| NormWeights::declare(graph, "", norm, width));
        Self { model, tokens, positions, token_types, embedding_norm, blocks, last_norm }
    }

    /// tokens: (B, T), segments: (B, T), 0 for padding -> the last states (B, T, C). `side` is the first part of the
    /// names of its nodes, since a program may have several such passes.
    pub(crate) fn forward(
        &self,
        builder: &mut ProgramBuilder,
        side: &str,
        [tokens, segments]: [TensorId; 2],
        mode: Mode,
    ) -> Result<TensorId, GraphError> {
        let (model, mut dropouts) = (&self.model, Dropouts::new(mode));
        builder.scope(format!("{side}/embedding"), None);
        let mut x = builder.apply(Embedding, &[tokens, self.tokens])?;
        for (table, same) in [(self.token_types, true), (self.positions, false)] {
            if let Some(table) = table {
                x = builder.apply(Positions { offset: false, same }, &[x, table])?;
            }
        }
        x = self.embedding_norm.apply(builder, x)?;
        x = dropouts.apply(builder, x, Some(model.embedding_dropout))?;
        for (layer, (block, weights)) in model.blocks.iter().zip(&self.blocks).enumerate() {
            let number = u32::try_from(layer).ok();
            builder.scope(format!("{side}/h{layer}/attention"), number);
            let attend = |builder: &mut ProgramBuilder, x, dropouts: &mut Dropouts| {
                let streams = weights.attention.streams(builder, x, x, None)?;
                let attended = Attended { segments: Some([segments; 2]), ..Attended::default() };
                let y = weights.attention.attend(builder, &streams, attended, dropouts)?;
                dropouts.apply(builder, y, block.attention_dropout)
            };
            x = self.add(builder, x, weights.attention_norm.as_ref(), &mut dropouts, attend)?;
            builder.scope(format!("{side}/h{layer}/mlp"), number);
            let feed = |builder: &mut ProgramBuilder, x, dropouts: &mut Dropouts| {
                let y = weights.feed_forward.apply(builder, x, dropouts)?;
                dropouts.apply(builder, y, block.feed_forward_dropout)
            };
            x = self.add(builder, x, Some(&weights.feed_forward_norm), &mut dropouts, feed)?;
        }
        builder.scope(format!("{side}/end"), None);
        self.last_norm.as_ref().map_or(Ok(x), |norm| norm.apply(builder, x))
    }

    /// The residual stream after a block's part, with the part's norm where the family has it.
    fn add(
        &self,
        builder: &mut ProgramBuilder,
        x: TensorId,
        norm: Option<&NormWeights>,
        dropouts: &mut Dropouts,
        part: impl Fn(&mut ProgramBuilder, TensorId, &mut Dropouts) -> Result<TensorId, GraphError>,
    ) -> Result<TensorId, GraphError> {
        let normed = |builder: &mut ProgramBuilder, x, here: bool| match norm.filter(|_| here) {
            Some(norm) => norm.apply(builder, x),
            None => Ok(x),
        };
        let taken = normed(builder, x, !self.model.norms_follow_sums)?;
        let y = part(builder, taken, dropouts)?;
        let sum = builder.apply(Add, &[x, y])?;
        normed(builder, sum, self.model.norms_follow_sums)
    }
}
