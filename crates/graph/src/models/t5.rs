//! T5, including v1.1 and FLAN: an encoder and a decoder that attends to it, relative positions, RMSNorm, no biases.
//! Source: Raffel et al. 2020; names and layouts of parameters follow Hugging Face's `T5ForConditionalGeneration`,
//! initial values its `_init_weights`.

mod config;

pub use config::{FeedForwardProjection, T5Config};

use super::Description;
use super::description::{
    Attention, AttentionInputs, EncoderDecoder, FeedForward, Gate, Inner, Linear, Norm, NormFormula, Stack, Table,
};
use crate::ops::{Activation, RelativeBias, WeightLayout};

impl T5Config {
    fn norm(&self, name: &'static str) -> Norm {
        Norm { name, formula: NormFormula::Rms, epsilon: self.layer_norm_epsilon }
    }

    /// The initializer's factor divided by the square root of a number of channels.
    fn deviation(&self, channels: usize) -> f32 {
        self.initializer_factor * (channels as f32).powf(-0.5)
    }

    /// Attention with layers named in this order: queries, keys, values, output.
    fn attention(&self, names: [&'static str; 4], causal: bool, bias: Option<RelativeBias>) -> Attention {
        let (width, inner) = (self.d_model, self.num_heads.saturating_mul(self.d_kv));
        let linear = |name, inputs, outputs, deviation| Linear {
            name,
            inputs,
            outputs,
            layout: WeightLayout::OutIn,
            bias: false,
            deviation,
        };
        let [q, k, v, o] = names;
        Attention {
            heads: self.num_heads,
            kv_heads: self.num_heads,
            head_size: self.d_kv,
            inputs: AttentionInputs::Separate([
                linear(q, width, inner, self.deviation(width.saturating_mul(self.d_kv))),
                linear(k, width, inner, self.deviation(width)),
                linear(v, width, inner, self.deviation(width)),
            ]),
            norms: None,
            rotary: None,
            output: linear(o, inner, width, self.deviation(inner)),
            causal,
            window: None,
            scale: 1.0,
            cap: None,
            bias,
            sinks: None,
            dropout: self.dropout_rate,
        }
    }

    fn feed_forward(&self) -> FeedForward {
        let linear = |name, [inputs, outputs]: [usize; 2]| Linear {
            name,
            inputs,
            outputs,
            layout: WeightLayout::OutIn,
            bias: false,
            deviation: self.deviation(inputs),
        };
        let up = [self.d_model, self.d_ff];
        let gated = |activation| Inner::Gated {
            activation,
            layers: Gate::Separate(["DenseReluDense.wi_0", "DenseReluDense.wi_1"].map(|name| linear(name, up))),
        };
        let inner = match self.feed_forward_proj {
            FeedForwardProjection::Relu => Inner::Relu(linear("DenseReluDense.wi", up)),
            FeedForwardProjection::GatedGelu => gated(Activation::GeluTanh),
            FeedForwardProjection::GatedSilu => gated(Activation::Silu),
        };
        let down = linear("DenseReluDense.wo", [self.d_ff, self.d_model]);
        FeedForward { inner, down, dropout: Some(self.dropout_rate), experts: None }
    }

    fn stack(&self, [name, last_norm, table]: [&'static str; 3], layers: usize, decodes: bool) -> Stack {
        let own = ["SelfAttention.q", "SelfAttention.k", "SelfAttention.v", "SelfAttention.o"];
        let source = ["EncDecAttention.q", "EncDecAttention.k", "EncDecAttention.v", "EncDecAttention.o"];
        let buckets = self.relative_attention_num_buckets;
        let bias =
            RelativeBias { buckets, max_distance: self.relative_attention_max_distance, bidirectional: !decodes };
        Stack {
            name,
            layers,
            bias_table: Table { name: table, rows: buckets, deviation: self.deviation(self.d_model) },
            norm: self.norm("layer_norm"),
            own: self.attention(own, decodes, Some(bias)),
            source: decodes.then(|| self.attention(source, false, None)),
            feed_forward: self.feed_forward(),
            last_norm: self.norm(last_norm),
        }
    }

    /// The model's description.
    pub(super) fn describe(&self) -> Description {
        let encoder =
            ["encoder", "encoder.final_layer_norm", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"];
        let decoder =
            ["decoder", "decoder.final_layer_norm", "decoder.block.0.layer.0.SelfAttention.relative_attention_bias"];
        // `transformers` initializes an untied head with a deviation of one, which makes a new model's loss far higher
        // than the entropy of its vocabulary.
        let head = Table { name: "lm_head", rows: self.vocab_size, deviation: self.deviation(self.d_model) };
        Description::EncoderDecoder(EncoderDecoder {
            vocab_size: self.vocab_size,
            width: self.d_model,
            tokens: Table { name: "shared", rows: self.vocab_size, deviation: self.initializer_factor },
            encoder: self.stack(encoder, self.num_layers, false),
            decoder: self.stack(decoder, self.num_decoder_layers, true),
            head: (!self.tie_word_embeddings).then_some(head),
            head_scale: self.scale_decoder_outputs.then(|| (self.d_model as f32).powf(-0.5)),
            dropout: self.dropout_rate,
        })
    }
}
