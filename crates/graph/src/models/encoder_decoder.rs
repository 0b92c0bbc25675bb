//! An [`EncoderDecoder`] in a graph: its parameters, and its forward pass for training, evaluation and sampling.

use super::description::{EncoderDecoder, Stack};
use super::parts::{Attended, AttentionWeights, Dropouts, FeedForwardWeights, NormWeights, declare_table, scaled};
use super::{CacheShapes, Caches, Inputs, Mode};
use crate::ops::{Add, Embedding};
use crate::{Graph, GraphError, ProgramBuilder, TensorId};

/// The parameters in a graph, and the description that declares them.
#[derive(Debug, Clone)]
pub struct EncoderDecoderWeights {
    model: EncoderDecoder,
    tokens: TensorId,
    encoder: StackWeights,
    decoder: StackWeights,
    pub(super) head: TensorId,
}

#[derive(Debug, Clone)]
struct StackWeights {
    /// The table of relative positions (buckets, H), which the first block holds for all blocks.
    bias_table: TensorId,
    blocks: Vec<BlockWeights>,
    last_norm: NormWeights,
}

#[derive(Debug, Clone)]
struct BlockWeights {
    own: AttentionWeights,
    own_norm: NormWeights,
    /// Cross-attention and its norm, in a decoder.
    source: Option<(AttentionWeights, NormWeights)>,
    feed_forward: FeedForwardWeights,
    feed_forward_norm: NormWeights,
}

impl StackWeights {
    fn declare(graph: &mut Graph, stack: &Stack, width: usize) -> Self {
        let mut bias_table = None;
        let mut blocks = Vec::with_capacity(stack.layers);
        for layer in 0..stack.layers {
            let norm =
                |graph: &mut Graph, part| NormWeights::declare(graph, &stack.part(layer, part), stack.norm, width);
            let own = AttentionWeights::declare(graph, &stack.part(layer, 0), &stack.own);
            bias_table.get_or_insert_with(|| declare_table(graph, &stack.bias_table, stack.own.heads));
            let own_norm = norm(graph, 0);
            let source = stack.source.as_ref().map(|source| {
                let weights = AttentionWeights::declare(graph, &stack.part(layer, 1), source);
                (weights, norm(graph, 1))
            });
            let last = stack.last_part();
            let feed_forward = FeedForwardWeights::declare(graph, &stack.part(layer, last), &stack.feed_forward);
            let feed_forward_norm = norm(graph, last);
            blocks.push(BlockWeights { own, own_norm, source, feed_forward, feed_forward_norm });
        }
        let last_norm = NormWeights::declare(graph, "", stack.last_norm, width);
        Self { bias_table: bias_table.expect("a stack has at least one layer"), blocks, last_norm }
    }
}

impl EncoderDecoderWeights {
    /// Declares the parameters.
    pub(super) fn declare(graph: &mut Graph, model: EncoderDecoder) -> Self {
        let tokens = declare_table(graph, &model.tokens, model.width);
        let encoder = StackWeights::declare(graph, &model.encoder, model.width);
        let decoder = StackWeights::declare(graph, &model.decoder, model.width);
        let head = model.head.map_or(tokens, |head| declare_table(graph, &head, model.width));
        Self { model, tokens, encoder, decoder, head }
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
        let encoded = match mode {
            Mode::Cached => None,
            Mode::Train { .. } | Mode::Evaluate => Some(self.encode(builder, inputs, &mut dropouts)?),
        };
        self.decode(builder, inputs, encoded, caches, &mut dropouts)
    }

    /// Appends the encoder, and the nodes that fill the caches of the source.
    pub(super) fn cache_source(
        &self,
        builder: &mut ProgramBuilder,
        inputs: &Inputs,
        caches: &Caches,
    ) -> Result<(), GraphError> {
        let encoded = self.encode(builder, inputs, &mut Dropouts::new(Mode::Cached))?;
        for (layer, (block, kept)) in self.decoder.blocks.iter().zip(&caches.source).enumerate() {
            builder.scope(format!("decoder/h{layer}/source"), self.decoder_block(layer));
            let (weights, _) = block.source.as_ref().expect("a decoder's blocks attend to the source");
            for (layer, &kept) in weights.inputs[1..].iter().zip(kept) {
                layer.apply_into(builder, encoded, kept)?;
            }
        }
        Ok(())
    }

    /// The index of a decoder's block among all blocks.
    fn decoder_block(&self, layer: usize) -> Option<u32> {
        u32::try_from(self.model.encoder.layers + layer).ok()
    }

    /// tokens: (B, S) -> the encoder's last states (B, S, C).
    fn encode(
        &self,
        builder: &mut ProgramBuilder,
        inputs: &Inputs,
        dropouts: &mut Dropouts,
    ) -> Result<TensorId, GraphError> {
        let (stack, rate) = (&self.encoder, Some(self.model.dropout));
        builder.scope("encoder/embedding", None);
        let x = builder.apply(Embedding, &[inputs.tokens, self.tokens])?;
        let mut x = dropouts.apply(builder, x, rate)?;
        for (layer, block) in stack.blocks.iter().enumerate() {
            let number = u32::try_from(layer).ok();
            builder.scope(format!("encoder/h{layer}/attention"), number);
            let normed = block.own_norm.apply(builder, x)?;
            let streams = block.own.streams(builder, normed, normed, None)?;
            let segments = inputs.segments.map(|segments| [segments, segments]);
            let attended = Attended { bias_table: Some(stack.bias_table), segments, cache: None };
            let y = block.own.attend(builder, &streams, attended, dropouts)?;
            let y = dropouts.apply(builder, y, rate)?;
            x = builder.apply(Add, &[x, y])?;
            builder.scope(format!("encoder/h{layer}/mlp"), number);
            x = self.feed_forward(builder, block, x, dropouts)?;
        }
        builder.scope("encoder/end", None);
        let x = stack.last_norm.apply(builder, x)?;
        dropouts.apply(builder, x, rate)
    }

    /// decoder tokens: (B, T) -> the decoder's last states (B, T, C), scaled for the head. `encoded` are the encoder's
    /// last states; without them the caches have their keys and values.
    fn decode(
        &self,
        builder: &mut ProgramBuilder,
        inputs: &Inputs,
        encoded: Option<TensorId>,
        caches: &Caches,
        dropouts: &mut Dropouts,
    ) -> Result<TensorId, GraphError> {
        let (stack, rate) = (&self.decoder, Some(self.model.dropout));
        let [tokens, segments] = inputs.decoder.expect("a decoder's inputs are tokens and segments");
        builder.scope("decoder/embedding", None);
        let x = builder.apply(Embedding, &[tokens, self.tokens])?;
        let mut x = dropouts.apply(builder, x, rate)?;
        for (layer, block) in stack.blocks.iter().enumerate() {
            let number = self.decoder_block(layer);
            builder.scope(format!("decoder/h{layer}/attention"), number);
            let normed = block.own_norm.apply(builder, x)?;
            let cache = caches.own.get(layer).copied();
            let streams = block.own.streams(builder, normed, normed, cache)?;
            let attended = Attended { bias_table: Some(stack.bias_table), segments: None, cache };
            let y = block.own.attend(builder, &streams, attended, dropouts)?;
            let y = dropouts.apply(builder, y, rate)?;
            x = builder.apply(Add, &[x, y])?;

            builder.scope(format!("decoder/h{layer}/source"), number);
            let (weights, norm) = block.source.as_ref().expect("a decoder's blocks attend to the source");
            let normed = norm.apply(builder, x)?;
            let streams = match (encoded, caches.source.get(layer)) {
                (Some(encoded), _) => weights.streams(builder, normed, encoded, None)?,
                (None, Some(&[keys, values])) => vec![weights.inputs[0].apply(builder, normed)?, keys, values],
                (None, None) => panic!("a decoder needs the encoder's states or their keys and values"),
            };
            let segments = inputs.segments.map(|of_source| [segments, of_source]);
            let attended = Attended { segments, ..Attended::default() };
            let y = weights.attend(builder, &streams, attended, dropouts)?;
            let y = dropouts.apply(builder, y, rate)?;
            x = builder.apply(Add, &[x, y])?;

            builder.scope(format!("decoder/h{layer}/mlp"), number);
            x = self.feed_forward(builder, block, x, dropouts)?;
        }
        builder.scope("head", None);
        let x = stack.last_norm.apply(builder, x)?;
        let x = dropouts.apply(builder, x, rate)?;
        scaled(builder, x, self.model.head_scale)
    }

    /// The residual stream after a block's feed-forward layer.
    fn feed_forward(
        &self,
        builder: &mut ProgramBuilder,
        block: &BlockWeights,
        x: TensorId,
        dropouts: &mut Dropouts,
    ) -> Result<TensorId, GraphError> {
        let normed = block.feed_forward_norm.apply(builder, x)?;
        let y = block.feed_forward.apply(builder, normed, dropouts)?;
        let y = dropouts.apply(builder, y, Some(self.model.dropout))?;
        builder.apply(Add, &[x, y])
    }
}

/// Shapes of the keys and values of `rows` samples: for `positions` tokens, and for `source` tokens of a source.
pub(super) fn cache_shapes(model: &EncoderDecoder, rows: usize, positions: usize, source: usize) -> CacheShapes {
    let stack = &model.decoder;
    let each = |tokens, width| {
        let shape = vec![rows, tokens, width];
        vec![[shape.clone(), shape]; stack.layers]
    };
    let of_source = stack.source.as_ref().map_or(0, |attention| attention.kv_width());
    CacheShapes { own: each(positions, stack.own.kv_width()), source: each(source, of_source) }
}
