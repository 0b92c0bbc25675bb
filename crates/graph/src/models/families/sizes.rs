//! The sizes that decoders share, and their blocks as Llama has them. A family changes what differs.

use super::reader::Reader;
use super::rope::{self, Rope};
use crate::GraphError;
use crate::models::description::{
    Attention, AttentionInputs, Block, Decoder, FeedForward, Gate, Inner, Linear, Norm, NormFormula, Norms,
    RotaryPositions, Table,
};
use crate::models::keys::{GELU_TANH, bad, check_extents};
use crate::ops::{Activation, WeightLayout};
use serde_json::Value;

/// The sizes and constants of a decoder.
pub(super) struct Sizes {
    vocab_size: usize,
    pub(super) width: usize,
    pub(super) inner: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_size: usize,
    max_positions: usize,
    epsilon: f32,
    pub(super) deviation: f32,
    pub(super) activation: Activation,
    is_tied: bool,
    dropout: f32,
}

/// The names of activations in `transformers`, each with its aliases.
const ACTIVATIONS: [(&[&str], Activation); 4] = [
    (&["silu", "swish"], Activation::Silu),
    (&GELU_TANH, Activation::GeluTanh),
    (&["gelu", "gelu_python"], Activation::Gelu),
    (&["relu"], Activation::Relu),
];

/// The activation under a key. Errors: `BadConfig`.
pub(super) fn read_activation(keys: &mut Reader<'_>, key: &str) -> Result<Activation, GraphError> {
    let name = keys.word(key, &ACTIVATIONS.map(|(names, _)| names))?;
    let known = ACTIVATIONS.iter().find(|(names, _)| names[0] == name);
    Ok(known.expect("the word is one of them").1)
}

impl Sizes {
    /// Reads them under the keys of most families. Errors: `BadConfig`.
    pub(super) fn read(keys: &mut Reader<'_>) -> Result<Self, GraphError> {
        Self::with_activation(keys, "hidden_act")
    }

    /// The same; `activation` is the key of the feed-forward layers' activation.
    pub(super) fn with_activation(keys: &mut Reader<'_>, activation: &str) -> Result<Self, GraphError> {
        let (vocab_size, width) = (keys.size("vocab_size")?, keys.size("hidden_size")?);
        let (inner, layers) = (keys.size("intermediate_size")?, keys.layers()?);
        let heads = keys.size("num_attention_heads")?;
        let kv_heads = match keys.optional_size("num_key_value_heads")? {
            Some(kv_heads) => kv_heads,
            None => heads,
        };
        keys.record("num_key_value_heads", kv_heads);
        let head_size = match keys.optional_size("head_dim")? {
            Some(head_size) => head_size,
            None if width.is_multiple_of(heads) => width / heads,
            None => {
                let problem =
                    format!("is {heads}, which does not divide hidden_size = {width}, and there is no head_dim");
                return Err(bad("num_attention_heads", problem));
            }
        };
        if !heads.is_multiple_of(kv_heads) {
            let problem = format!("is {kv_heads}, which does not divide num_attention_heads = {heads}");
            return Err(bad("num_key_value_heads", problem));
        }
        keys.record("head_dim", head_size);
        check_extents(&[("head_dim", heads * head_size)])?;
        let activation = read_activation(keys, activation)?;
        Ok(Self {
            vocab_size,
            width,
            inner,
            layers,
            heads,
            kv_heads,
            head_size,
            max_positions: keys.size("max_position_embeddings")?,
            epsilon: keys.number("rms_norm_eps")?,
            deviation: keys.number("initializer_range")?,
            activation,
            is_tied: keys.flag("tie_word_embeddings")?,
            dropout: keys.rate("attention_dropout")?,
        })
    }

    /// The rotary positions of all layers, which rotate whole heads. Errors: `BadConfig`.
    pub(super) fn rotary(&self, keys: &mut Reader<'_>) -> Result<RotaryPositions, GraphError> {
        let rope = rope::read(keys)?;
        if rope.rotated != 1.0 {
            return Err(bad("partial_rotary_factor", format!("is {}; only 1 is supported", rope.rotated)));
        }
        self.rotated(keys, rope)
    }

    /// The same, which may rotate a part of each head. Errors: `BadConfig`.
    pub(super) fn partial_rotary(&self, keys: &mut Reader<'_>) -> Result<RotaryPositions, GraphError> {
        let rope = rope::read(keys)?;
        keys.record("partial_rotary_factor", rope.rotated);
        self.rotated(keys, rope)
    }

    /// The same from rotary positions that were read.
    pub(super) fn rotated(&self, keys: &mut Reader<'_>, rope: Rope) -> Result<RotaryPositions, GraphError> {
        keys.record("rope_theta", rope.theta);
        keys.record("rope_scaling", rope::write(&rope.scaling));
        self.positions(rope)
    }

    /// Rotary positions of this model's heads. Errors: `BadConfig` if the rotated channels of a head are not pairs, or if
    /// there are factors for another number of pairs.
    pub(super) fn positions(&self, rope: Rope) -> Result<RotaryPositions, GraphError> {
        let rotated = (self.head_size as f64 * rope.rotated) as usize;
        if rotated == 0 || !rotated.is_multiple_of(2) {
            return Err(bad("head_dim", format!("is {rotated}; rotary positions need an even number")));
        }
        if !rope.scaling.fits(rotated / 2) {
            return Err(bad("rope_scaling", format!("needs {} factors in each list, half of head_dim", rotated / 2)));
        }
        Ok(RotaryPositions { base: rope.theta as f32, rotated, scaling: rope.scaling })
    }

    /// A root-mean-square norm.
    pub(super) fn norm(&self, name: &'static str) -> Norm {
        Norm { name, formula: NormFormula::Rms, epsilon: self.epsilon }
    }

    /// A linear layer.
    pub(super) fn linear(&self, name: &'static str, [inputs, outputs]: [usize; 2], bias: bool) -> Linear {
        Linear { name, inputs, outputs, layout: WeightLayout::OutIn, bias, deviation: self.deviation }
    }

    /// Channels of the queries, of the keys and of the values.
    pub(super) fn channels(&self) -> [usize; 3] {
        [self.heads, self.kv_heads, self.kv_heads].map(|heads| heads * self.head_size)
    }

    /// Llama's block.
    pub(super) fn block(&self, rotary: Option<RotaryPositions>) -> Block {
        let width = self.width;
        let [queries, keys, values] = self.channels();
        let attention = Attention {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_size: self.head_size,
            inputs: AttentionInputs::Separate([
                self.linear("self_attn.q_proj", [width, queries], false),
                self.linear("self_attn.k_proj", [width, keys], false),
                self.linear("self_attn.v_proj", [width, values], false),
            ]),
            norms: None,
            rotary,
            output: self.linear("self_attn.o_proj", [queries, width], false),
            causal: true,
            window: None,
            scale: 1.0 / (self.head_size as f32).sqrt(),
            cap: None,
            bias: None,
            sinks: None,
            dropout: self.dropout,
        };
        Block {
            attention_norms: Norms::before(self.norm("input_layernorm")),
            attention,
            feed_forward_norms: Norms::before(self.norm("post_attention_layernorm")),
            feed_forward: self.gated(["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"], self.inner),
            residual_dropout: None,
            residual_scale: None,
            second_norm_is_last: true,
        }
    }

    /// A gated feed-forward layer with this inner width: the names of the gate, of the layer that it multiplies, and of the
    /// layer down.
    pub(super) fn gated(&self, [gate, up, down]: [&'static str; 3], width: usize) -> FeedForward {
        let layers = Gate::Separate([gate, up].map(|name| self.linear(name, [self.width, width], false)));
        let inner = Inner::Gated { activation: self.activation, layers };
        FeedForward { inner, down: self.linear(down, [width, self.width], false), dropout: None, experts: None }
    }

    /// Llama's decoder around these blocks.
    pub(super) fn decoder(&self, blocks: Vec<Block>) -> Decoder {
        let table = |name| Table { name, rows: self.vocab_size, deviation: self.deviation };
        Decoder {
            vocab_size: self.vocab_size,
            width: self.width,
            max_positions: self.max_positions,
            tokens: table("model.embed_tokens"),
            embedding_scale: None,
            positions: None,
            embedding_dropout: None,
            block_list: "model.layers",
            blocks,
            last_norm: self.norm("model.norm"),
            head: (!self.is_tied).then(|| table("lm_head")),
            head_scale: None,
            logit_cap: None,
        }
    }
}

/// Gives the layers of a block's attention biases if the file asks for them. Errors: `BadConfig`.
pub(super) fn add_attention_biases(keys: &mut Reader<'_>, block: &mut Block) -> Result<(), GraphError> {
    if keys.flag("attention_bias")? {
        block.attention.add_biases();
    }
    Ok(())
}

/// The same for all layers of a block. Errors: `BadConfig`.
pub(super) fn add_biases(keys: &mut Reader<'_>, block: &mut Block) -> Result<(), GraphError> {
    add_attention_biases(keys, block)?;
    if keys.flag("mlp_bias")? {
        block.feed_forward.add_biases();
    }
    Ok(())
}

/// The values of `layer_types`: without a window, and with one.
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

/// Whether each layer attends within the window: as the file's `layer_types` lists, or as `default` says.
/// Errors: `BadConfig`.
pub(super) fn sliding_layers(
    keys: &mut Reader<'_>,
    layers: usize,
    default: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, GraphError> {
    let usual = (0..layers).map(default).collect::<Vec<_>>();
    let Some(types) = keys.list("layer_types", layers)? else { return Ok(usual) };
    let slides = |name: &Value| match LAYER_TYPES.iter().position(|known| name == known) {
        Some(place) => Ok(place == 1),
        None => Err(bad("layer_types", format!("has {name}; {} are supported", LAYER_TYPES.join(" and ")))),
    };
    let slides = types.iter().map(slides).collect::<Result<Vec<_>, _>>()?;
    if slides != usual {
        keys.record("layer_types", types.clone());
    }
    Ok(slides)
}
