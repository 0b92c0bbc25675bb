//! What a model computes and the names of its parameters, as plain data that each family derives from its config.json.
//! The graph, the estimates of PyTorch runs and the names in checkpoints all read it.
//!
//! Sizes count elements. B: batch, T: tokens, C: the model's width, F: inner width of the feed-forward layer.

use super::ContextScaling;
use crate::ops::{Activation, ClampedSwiglu, RelativeBias, WeightLayout};

/// The description of a model.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "few exist at a time")]
pub enum Description {
    /// A decoder.
    Decoder(Decoder),
    /// An encoder, and a decoder that attends to it.
    EncoderDecoder(EncoderDecoder),
    /// An encoder.
    Encoder(Encoder),
}

/// Limit of positions. Relative positions have none, and a model with more is rejected as implausible.
const MOST_POSITIONS: usize = 1 << 24;

impl Description {
    /// Number of blocks (layers), of an encoder and a decoder together.
    pub fn blocks(&self) -> usize {
        match self {
            Self::Decoder(decoder) => decoder.blocks.len(),
            Self::EncoderDecoder(model) => model.stacks().iter().map(|stack| stack.layers).sum(),
            Self::Encoder(encoder) => encoder.blocks.len(),
        }
    }

    /// Channels of the residual stream.
    pub fn width(&self) -> usize {
        match self {
            Self::Decoder(decoder) => decoder.width,
            Self::EncoderDecoder(model) => model.width,
            Self::Encoder(encoder) => encoder.width,
        }
    }

    /// Number of token ids.
    pub fn vocab_size(&self) -> usize {
        match self {
            Self::Decoder(decoder) => decoder.vocab_size,
            Self::EncoderDecoder(model) => model.vocab_size,
            Self::Encoder(encoder) => encoder.vocab_size,
        }
    }

    /// The longest sequence that the model has positions for.
    pub fn max_positions(&self) -> usize {
        match self {
            Self::Decoder(decoder) => decoder.max_positions,
            Self::EncoderDecoder(_) => MOST_POSITIONS,
            Self::Encoder(encoder) => encoder.max_positions,
        }
    }
}

/// A decoder-only model.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoder {
    /// Number of token ids, V.
    pub vocab_size: usize,
    /// Channels of the residual stream, C.
    pub width: usize,
    /// The longest sequence that the model has positions for.
    pub max_positions: usize,
    /// The token embedding (V, C).
    pub tokens: Table,
    /// Factor of the token embedding.
    pub embedding_scale: Option<f32>,
    /// The embedding of positions (positions, C), if they are learned.
    pub positions: Option<Table>,
    /// Dropout of the embeddings' sum; `None` if the family has no such dropout.
    pub embedding_dropout: Option<f32>,
    /// Path of the list of blocks, such as `model.layers`.
    pub block_list: &'static str,
    /// The blocks, first to last.
    pub blocks: Vec<Block>,
    /// The norm before the output head.
    pub last_norm: Norm,
    /// The output head (V, C); `None` if the token embedding is used.
    pub head: Option<Table>,
    /// Factor of the head's input.
    pub head_scale: Option<f32>,
    /// Soft limit of the logits: cap · tanh(logit / cap).
    pub logit_cap: Option<f32>,
}

/// A block: attention and a feed-forward layer. Each adds its result to the residual stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// The norms of attention.
    pub attention_norms: Norms,
    /// Attention.
    pub attention: Attention,
    /// The norms of the feed-forward layer.
    pub feed_forward_norms: Norms,
    /// The feed-forward layer.
    pub feed_forward: FeedForward,
    /// Dropout of the results before they are added to the residual stream; `None` if the family has no such dropout.
    pub residual_dropout: Option<f32>,
    /// Factor of the results before they are added to the residual stream.
    pub residual_scale: Option<f32>,
    /// Whether the second norm is declared after the feed-forward layer. The initial values of parameters depend on
    /// their indices, which follow the order of declaration.
    pub second_norm_is_last: bool,
}

impl Block {
    /// The block with this window of attention.
    pub(super) fn within(mut self, window: Option<usize>) -> Self {
        self.attention.window = window;
        self
    }

    /// The norms, in the order of a pass.
    pub fn norms(&self) -> impl Iterator<Item = Norm> {
        let of_parts = [&self.attention_norms, &self.feed_forward_norms];
        of_parts.into_iter().flat_map(|norms| [norms.before, norms.after]).flatten()
    }
}

/// The norms of a block's part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norms {
    /// The norm of the residual stream that the part takes.
    pub before: Option<Norm>,
    /// The norm of the part's result.
    pub after: Option<Norm>,
}

impl Norms {
    /// Only the norm before a part.
    pub(super) const fn before(norm: Norm) -> Self {
        Self { before: Some(norm), after: None }
    }
}

/// An encoder, and a decoder that attends to it.
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderDecoder {
    /// Number of token ids, V.
    pub vocab_size: usize,
    /// Channels of the residual stream, C.
    pub width: usize,
    /// The token embedding (V, C) of both stacks.
    pub tokens: Table,
    /// The encoder.
    pub encoder: Stack,
    /// The decoder.
    pub decoder: Stack,
    /// The output head (V, C); `None` if the token embedding is used.
    pub head: Option<Table>,
    /// Factor of the head's input.
    pub head_scale: Option<f32>,
    /// Dropout of embeddings, of results added to the residual stream, of the stacks' results and inside feed-forward
    /// layers.
    pub dropout: f32,
}

/// The identical blocks of an encoder or of a decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct Stack {
    /// First part of the parameters' names.
    pub name: &'static str,
    /// Number of blocks.
    pub layers: usize,
    /// The table of relative positions (buckets, H), which the first block holds for all blocks.
    pub bias_table: Table,
    /// The norm before each part of a block.
    pub norm: Norm,
    /// Self-attention.
    pub own: Attention,
    /// Cross-attention to the encoder's result; `None` in the encoder.
    pub source: Option<Attention>,
    /// The feed-forward layer.
    pub feed_forward: FeedForward,
    /// The norm of the stack's result.
    pub last_norm: Norm,
}

impl Stack {
    /// The path of a part of a block: self-attention, cross-attention if present, the feed-forward layer.
    pub fn part(&self, layer: usize, part: usize) -> String {
        format!("{}.block.{layer}.layer.{part}", self.name)
    }

    /// The index of the feed-forward layer among a block's parts.
    pub fn last_part(&self) -> usize {
        1 + usize::from(self.source.is_some())
    }
}

/// An encoder: its tokens attend to tokens before and after them. It has no output head.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoder {
    /// Number of token ids, V.
    pub vocab_size: usize,
    /// Channels of the residual stream, C.
    pub width: usize,
    /// The longest sequence that the model has positions for.
    pub max_positions: usize,
    /// The token embedding (V, C).
    pub tokens: Table,
    /// The embedding of positions (positions, C), if they are learned.
    pub positions: Option<Table>,
    /// The embedding of types of tokens (types, C), if there is one. All tokens have type 0.
    pub token_types: Option<Table>,
    /// The norm of the embeddings' sum.
    pub embedding_norm: Norm,
    /// Dropout of the embeddings after their norm.
    pub embedding_dropout: f32,
    /// Path of the list of blocks, such as `encoder.layer`.
    pub block_list: &'static str,
    /// The blocks, first to last.
    pub blocks: Vec<EncoderBlock>,
    /// Whether a block's norms are those of the residual stream after each of its parts, and not of what its parts take.
    pub norms_follow_sums: bool,
    /// The norm after the last block, if there is one.
    pub last_norm: Option<Norm>,
}

/// A block of an encoder: attention and a feed-forward layer. Each adds its result to the residual stream.
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderBlock {
    /// The norm of attention, if there is one.
    pub attention_norm: Option<Norm>,
    /// Attention.
    pub attention: Attention,
    /// Dropout of attention's result; `None` if the family has no such dropout.
    pub attention_dropout: Option<f32>,
    /// The norm of the feed-forward layer.
    pub feed_forward_norm: Norm,
    /// The feed-forward layer.
    pub feed_forward: FeedForward,
    /// Dropout of the feed-forward layer's result; `None` if the family has no such dropout.
    pub feed_forward_dropout: Option<f32>,
}

/// A table with a row for each id or position: `NAME.weight`, initialized from a normal distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Table {
    /// Its module's path, without `.weight`.
    pub name: &'static str,
    /// Number of rows.
    pub rows: usize,
    /// Standard deviation of its initial values.
    pub deviation: f32,
}

/// A norm over the channels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// Its module's name, below the block's.
    pub name: &'static str,
    /// Its formula.
    pub formula: NormFormula,
    /// Added to the variance.
    pub epsilon: f32,
}

/// The formula of a norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormFormula {
    /// Root mean square, with a weight.
    Rms,
    /// Root mean square, times one plus a weight.
    OffsetRms,
    /// Mean and variance, with a weight and perhaps a bias.
    Layer {
        /// Whether there is a bias.
        bias: bool,
    },
}

/// A linear layer: `NAME.weight`, initialized from a normal distribution, and `NAME.bias`, initialized to zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Linear {
    /// Its module's name, below the block's.
    pub name: &'static str,
    /// Input channels.
    pub inputs: usize,
    /// Output channels.
    pub outputs: usize,
    /// Order of the weight's extents.
    pub layout: WeightLayout,
    /// Whether there is a bias.
    pub bias: bool,
    /// Standard deviation of the weight's initial values.
    pub deviation: f32,
}

/// Multi-head attention: (B, T, C) -> (B, T, C).
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and of values; divides `heads`.
    pub kv_heads: usize,
    /// Channels of a head.
    pub head_size: usize,
    /// The layers that compute queries, keys and values.
    pub inputs: AttentionInputs,
    /// Norms of queries and keys before their rotation.
    pub norms: Option<HeadNorms>,
    /// Rotation of queries and keys by their positions.
    pub rotary: Option<RotaryPositions>,
    /// The layer after the heads' results.
    pub output: Linear,
    /// Whether a token attends only to itself and earlier tokens.
    pub causal: bool,
    /// Largest number of tokens that a token attends to, including itself.
    pub window: Option<usize>,
    /// Factor of the scores.
    pub scale: f32,
    /// Soft limit of the scores: cap · tanh(score / cap).
    pub cap: Option<f32>,
    /// Bias of the scores by distance.
    pub bias: Option<RelativeBias>,
    /// The sinks.
    pub sinks: Option<Sinks>,
    /// Dropout of the attention probabilities.
    pub dropout: f32,
}

/// A score (H,) for each head that takes part in the softmax without a value, initialized from a normal distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sinks {
    /// The tensor's name, below the block's.
    pub name: &'static str,
    /// Standard deviation of the initial values.
    pub deviation: f32,
}

/// The layers that compute queries, keys and values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AttentionInputs {
    /// One layer whose result is split in queries, keys and values.
    Packed(Linear),
    /// The layers of queries, keys and values.
    Separate([Linear; 3]),
}

impl AttentionInputs {
    /// The layers, queries first.
    pub fn layers(&self) -> &[Linear] {
        match self {
            Self::Packed(layer) => std::slice::from_ref(layer),
            Self::Separate(layers) => layers,
        }
    }

    pub(super) fn layers_mut(&mut self) -> &mut [Linear] {
        match self {
            Self::Packed(layer) => std::slice::from_mut(layer),
            Self::Separate(layers) => layers,
        }
    }
}

/// Norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadNorms {
    /// The norm of queries.
    pub queries: Norm,
    /// The norm of keys.
    pub keys: Norm,
    /// Whether the channels of each head are normalized separately, with the same weight; otherwise those of all heads
    /// together.
    pub each_head: bool,
}

impl HeadNorms {
    /// The weights' lengths for queries and for keys.
    pub fn channels(&self, attention: &Attention) -> [usize; 2] {
        match self.each_head {
            true => [attention.head_size; 2],
            false => [attention.heads, attention.kv_heads].map(|heads| heads * attention.head_size),
        }
    }
}

/// Rotary positions.
#[derive(Debug, Clone, PartialEq)]
pub struct RotaryPositions {
    /// Base of the wavelengths.
    pub base: f32,
    /// Number of channels of a head that are rotated.
    pub rotated: usize,
    /// Scaling for sequences longer than in pretraining.
    pub scaling: ContextScaling,
}

/// A feed-forward layer: (B, T, C) -> (B, T, F) -> (B, T, C).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FeedForward {
    /// The layers up to F, and the activation.
    pub inner: Inner,
    /// The layer down to C.
    pub down: Linear,
    /// Dropout before `down`; `None` if the family has no such dropout.
    pub dropout: Option<f32>,
    /// The experts that each have these layers; `None` if there is one layer for all tokens.
    pub experts: Option<Experts>,
}

/// A mixture of experts: a router sends each token to a few of them, and their results are added with its weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Experts {
    /// The path of their list.
    pub list: &'static str,
    /// Whether a model's files have one tensor `LIST.NAME` (E, I, O) for a layer of all experts, and `LIST.NAME_bias` (E, O);
    /// otherwise expert 3 has its layers at `LIST.3.NAME`.
    pub stacked: bool,
    /// Number of experts, E.
    pub count: usize,
    /// Number of experts of a token, K.
    pub chosen: usize,
    /// The layer that computes the logits of the experts: C -> E.
    pub router: Linear,
    /// Whether the weights of a token's experts sum to one.
    pub normalized: bool,
    /// Coefficient of the loss on the balance of experts; `None` if training does not add it.
    pub balance: Option<f32>,
}

/// The first half of a feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Inner {
    /// GELU in its tanh form.
    Gelu(Linear),
    /// GELU with the normal distribution itself.
    ExactGelu(Linear),
    /// ReLU.
    Relu(Linear),
    /// A gate, and the layer whose result it multiplies.
    Gated {
        /// The gate's activation.
        activation: Activation,
        /// The gate, and the layer that it multiplies.
        layers: Gate,
    },
    /// The SwiGLU of [`ClampedSwiglu`].
    ClampedSwiglu {
        /// The layer whose results are the gates and the channels that they multiply, in turn.
        layer: Linear,
        /// The activation.
        activation: ClampedSwiglu,
    },
}

/// The layers of a gated feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Gate {
    /// The gate, and the layer that it multiplies.
    Separate([Linear; 2]),
    /// One layer whose result is split in both.
    Packed(Linear),
}

impl Inner {
    /// The layers, the gate first.
    pub fn layers(&self) -> &[Linear] {
        match self {
            Self::Gelu(layer)
            | Self::ExactGelu(layer)
            | Self::Relu(layer)
            | Self::ClampedSwiglu { layer, .. }
            | Self::Gated { layers: Gate::Packed(layer), .. } => std::slice::from_ref(layer),
            Self::Gated { layers: Gate::Separate(layers), .. } => layers,
        }
    }

    fn layers_mut(&mut self) -> &mut [Linear] {
        match self {
            Self::Gelu(layer)
            | Self::ExactGelu(layer)
            | Self::Relu(layer)
            | Self::ClampedSwiglu { layer, .. }
            | Self::Gated { layers: Gate::Packed(layer), .. } => std::slice::from_mut(layer),
            Self::Gated { layers: Gate::Separate(layers), .. } => layers,
        }
    }
}

impl Linear {
    /// The extents of the weight.
    pub(super) fn extents(&self) -> [usize; 2] {
        match self.layout {
            WeightLayout::InOut => [self.inputs, self.outputs],
            WeightLayout::OutIn => [self.outputs, self.inputs],
        }
    }

    /// Number of parameters.
    fn parameters(&self) -> u128 {
        (self.inputs as u128 + u128::from(self.bias)) * self.outputs as u128
    }
}

impl Norm {
    /// Number of parameters of a norm of `width` channels.
    fn parameters(&self, width: usize) -> u128 {
        let weights = if self.formula == (NormFormula::Layer { bias: true }) { 2 } else { 1 };
        weights * width as u128
    }
}

impl Attention {
    /// Channels of all heads' keys, which equals that of their values.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_size
    }

    fn layers(&self) -> impl Iterator<Item = &Linear> {
        self.inputs.layers().iter().chain([&self.output])
    }

    /// Whether the op takes queries, keys and values in one tensor.
    pub(super) fn attends_packed(&self) -> bool {
        let is_packed = matches!(self.inputs, AttentionInputs::Packed(_));
        is_packed && self.rotary.is_none() && self.norms.is_none() && self.heads == self.kv_heads
    }

    /// Gives every layer a bias.
    pub(super) fn add_biases(&mut self) {
        for layer in self.inputs.layers_mut().iter_mut().chain([&mut self.output]) {
            layer.bias = true;
        }
    }

    /// Number of parameters in addition to those of the layers: of the norms of queries and keys, and of the sinks.
    fn other_parameters(&self) -> u128 {
        let norms = self.norms.map_or(0, |norms| norms.channels(self).iter().sum::<usize>());
        norms as u128 + self.sinks.map_or(0, |_| self.heads as u128)
    }
}

impl FeedForward {
    fn layers(&self) -> impl Iterator<Item = &Linear> {
        self.inner.layers().iter().chain([&self.down])
    }

    /// Number of parameters.
    fn parameters(&self) -> u128 {
        let layers = self.layers().map(Linear::parameters).sum::<u128>();
        self.experts.map_or(layers, |experts| experts.count as u128 * layers + experts.router.parameters())
    }

    /// Gives every layer a bias.
    pub(super) fn add_biases(&mut self) {
        for layer in self.inner.layers_mut().iter_mut().chain([&mut self.down]) {
            layer.bias = true;
        }
    }
}

impl Table {
    fn parameters(&self, width: usize) -> u128 {
        self.rows as u128 * width as u128
    }
}

/// The widest input or result row of any layer.
fn widest<'a>(layers: impl Iterator<Item = &'a Linear>) -> u128 {
    layers.map(|layer| layer.inputs.max(layer.outputs)).max().unwrap_or(0) as u128
}

/// Sizes computed without building a graph, so that implausible ones can be rejected first.
impl Decoder {
    /// Number of parameters.
    pub(super) fn parameters(&self) -> u128 {
        let of_block = |block: &Block| {
            let layers = block.attention.layers().map(Linear::parameters).chain([block.feed_forward.parameters()]);
            let norms = block.norms().map(|norm| norm.parameters(self.width)).sum::<u128>();
            layers.sum::<u128>() + norms + block.attention.other_parameters()
        };
        let tables = [Some(self.tokens), self.positions, self.head].into_iter().flatten();
        let tables = tables.map(|table| table.parameters(self.width)).sum::<u128>();
        tables + self.blocks.iter().map(of_block).sum::<u128>() + self.last_norm.parameters(self.width)
    }

    /// An upper bound of the elements per token of any activation of the forward or backward pass.
    pub(super) fn elements_per_token(&self) -> u128 {
        let of_block = |block: &Block| {
            let copies = block.feed_forward.experts.map_or(1, |experts| experts.chosen.max(1)) as u128;
            copies * widest(block.attention.layers().chain(block.feed_forward.layers()))
        };
        self.blocks.iter().map(of_block).sum()
    }
}

impl EncoderDecoder {
    /// Both stacks.
    pub fn stacks(&self) -> [&Stack; 2] {
        [&self.encoder, &self.decoder]
    }

    /// Number of parameters.
    pub(super) fn parameters(&self) -> u128 {
        let of_stack = |stack: &Stack| {
            let norms = (1 + stack.last_part() as u128) * stack.norm.parameters(self.width);
            let block = stack.linear_layers().map(Linear::parameters).sum::<u128>() + norms;
            let table = stack.bias_table.parameters(stack.own.heads);
            block * stack.layers as u128 + table + stack.last_norm.parameters(self.width)
        };
        let tables = [Some(self.tokens), self.head].into_iter().flatten();
        tables.map(|table| table.parameters(self.width)).sum::<u128>()
            + self.stacks().map(of_stack).iter().sum::<u128>()
    }

    /// An upper bound of the elements per token of any activation of the forward or backward pass.
    pub(super) fn elements_per_token(&self) -> u128 {
        self.stacks().map(|stack| widest(stack.linear_layers()) * stack.layers as u128).iter().sum()
    }
}

impl Encoder {
    /// Number of parameters.
    pub(super) fn parameters(&self) -> u128 {
        let of_block = |block: &EncoderBlock| {
            let norms = block.attention_norm.iter().chain([&block.feed_forward_norm]);
            let norms = norms.map(|norm| norm.parameters(self.width)).sum::<u128>();
            block.attention.layers().map(Linear::parameters).sum::<u128>() + block.feed_forward.parameters() + norms
        };
        let tables = [Some(self.tokens), self.positions, self.token_types].into_iter().flatten();
        let norms = [Some(self.embedding_norm), self.last_norm].into_iter().flatten();
        tables.map(|table| table.parameters(self.width)).sum::<u128>()
            + norms.map(|norm| norm.parameters(self.width)).sum::<u128>()
            + self.blocks.iter().map(of_block).sum::<u128>()
    }

    /// An upper bound of the elements per token of any activation of the forward or backward pass.
    pub(super) fn elements_per_token(&self) -> u128 {
        let of_block = |block: &EncoderBlock| widest(block.attention.layers().chain(block.feed_forward.layers()));
        self.blocks.iter().map(of_block).sum()
    }
}

impl Stack {
    fn linear_layers(&self) -> impl Iterator<Item = &Linear> {
        let attention = [Some(&self.own), self.source.as_ref()].into_iter().flatten();
        attention.flat_map(Attention::layers).chain(self.feed_forward.layers())
    }
}
