//! Llama and models with its architecture: RMSNorm, rotary positions, gated feed-forward layers, grouped heads.
//! Source: Touvron et al. 2023; names and layouts of parameters follow Hugging Face's `LlamaForCausalLM`.

mod config;
mod file;
mod mistral;
mod presets;
mod qwen2;
mod rope;

pub use config::{LlamaConfig, Variant};

use super::Description;
use super::description::{
    Attention, AttentionInputs, Block, Decoder, FeedForward, Inner, Linear, Norm, NormFormula, RotaryPositions, Table,
};
use super::keys::{MOST_LAYERS, flag};
use crate::ops::{Activation, WeightLayout};
use config::Dialect;

/// Keys that only Llama has: biases.
const DIALECT: Dialect = Dialect {
    model_type: "llama",
    class: "LlamaForCausalLM",
    read: |value, own| {
        let attention = flag(value, "attention_bias")?;
        (own.qkv_bias, own.output_bias, own.mlp_bias) = (attention, attention, flag(value, "mlp_bias")?);
        Ok(())
    },
    write: |_, _| (),
};

impl LlamaConfig {
    /// Largest number of tokens that a token of this layer attends to, including itself; `None` for no window.
    pub fn window(&self, layer: usize) -> Option<usize> {
        self.sliding_window.filter(|_| self.sliding_layers.get(layer).is_none_or(|&slides| slides))
    }

    fn norm(&self, name: &'static str) -> Norm {
        Norm { name, formula: NormFormula::Rms, epsilon: self.rms_norm_eps }
    }

    fn linear(&self, name: &'static str, [inputs, outputs]: [usize; 2], bias: bool) -> Linear {
        Linear { name, inputs, outputs, layout: WeightLayout::OutIn, bias, deviation: self.initializer_range }
    }

    fn block(&self, layer: usize) -> Block {
        let (width, inner, head_size) = (self.hidden_size, self.intermediate_size, self.head_dim);
        let (heads, kv_heads) = (self.num_attention_heads, self.num_key_value_heads);
        let attention = Attention {
            heads,
            kv_heads,
            head_size,
            inputs: AttentionInputs::Separate {
                layers: [
                    self.linear("self_attn.q_proj", [width, heads.saturating_mul(head_size)], self.qkv_bias),
                    self.linear("self_attn.k_proj", [width, kv_heads.saturating_mul(head_size)], self.qkv_bias),
                    self.linear("self_attn.v_proj", [width, kv_heads.saturating_mul(head_size)], self.qkv_bias),
                ],
                rotary: Some(RotaryPositions { base: self.rope_theta, scaling: self.scaling }),
            },
            output: self.linear("self_attn.o_proj", [heads.saturating_mul(head_size), width], self.output_bias),
            causal: true,
            window: self.window(layer),
            scale: 1.0 / (head_size as f32).sqrt(),
            bias: None,
            dropout: self.attention_dropout,
        };
        let inner = Inner::Gated {
            activation: Activation::Silu,
            layers: ["mlp.gate_proj", "mlp.up_proj"].map(|name| self.linear(name, [width, inner], self.mlp_bias)),
        };
        let down = self.linear("mlp.down_proj", [self.intermediate_size, width], self.mlp_bias);
        Block {
            attention_norm: self.norm("input_layernorm"),
            attention,
            feed_forward_norm: self.norm("post_attention_layernorm"),
            feed_forward: FeedForward { inner, down, dropout: None },
            residual_dropout: None,
            second_norm_is_last: true,
        }
    }

    /// The model's description.
    pub(super) fn describe(&self) -> Description {
        let table = |name| Table { name, rows: self.vocab_size, deviation: self.initializer_range };
        Description::Decoder(Decoder {
            vocab_size: self.vocab_size,
            width: self.hidden_size,
            max_positions: self.max_position_embeddings,
            tokens: table("model.embed_tokens"),
            positions: None,
            embedding_dropout: None,
            block_list: "model.layers",
            blocks: (0..self.num_hidden_layers.min(MOST_LAYERS)).map(|layer| self.block(layer)).collect(),
            last_norm: self.norm("model.norm"),
            head: (!self.tie_word_embeddings).then(|| table("lm_head")),
        })
    }
}
