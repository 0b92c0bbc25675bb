//! GPT-2: learned positions, norms before each part, tanh-GELU, a head tied to the token embedding.
//! Source: Radford et al. 2019; names and layouts of parameters follow Hugging Face's `GPT2LMHeadModel`.

mod config;

pub use config::Gpt2Config;

use super::Description;
use super::description::{
    Attention, AttentionInputs, Block, Decoder, FeedForward, Inner, Linear, Norm, NormFormula, Norms, Table,
};
use super::keys::MOST_LAYERS;
use crate::ops::WeightLayout;

impl Gpt2Config {
    pub(super) fn inner(&self) -> usize {
        self.n_inner.unwrap_or(self.n_embd.saturating_mul(4))
    }

    fn norm(&self, name: &'static str) -> Norm {
        Norm { name, formula: NormFormula::Layer { bias: self.bias }, epsilon: self.layer_norm_epsilon }
    }

    fn block(&self) -> Block {
        let (width, inner, deviation) = (self.n_embd, self.inner(), self.initializer_range);
        // Layers that add to the residual stream start with smaller weights, so that its variance does not grow with
        // depth.
        let residual = deviation / (2.0 * self.n_layer as f32).sqrt();
        let linear = |name, [inputs, outputs]: [usize; 2], deviation| Linear {
            name,
            inputs,
            outputs,
            layout: WeightLayout::InOut,
            bias: self.bias,
            deviation,
        };
        let head_size = width.checked_div(self.n_head).unwrap_or(0);
        let attention = Attention {
            heads: self.n_head,
            kv_heads: self.n_head,
            head_size,
            inputs: AttentionInputs::Packed(linear("attn.c_attn", [width, width.saturating_mul(3)], deviation)),
            output: linear("attn.c_proj", [width, width], residual),
            norms: None,
            rotary: None,
            causal: true,
            window: None,
            scale: 1.0 / (head_size as f32).sqrt(),
            cap: None,
            bias: None,
            sinks: None,
            dropout: self.attn_pdrop,
        };
        let down = linear("mlp.c_proj", [inner, width], residual);
        let inner = Inner::Gelu(linear("mlp.c_fc", [width, inner], deviation));
        Block {
            attention_norms: Norms::before(self.norm("ln_1")),
            attention,
            feed_forward_norms: Norms::before(self.norm("ln_2")),
            feed_forward: FeedForward { inner, down, dropout: None, experts: None },
            residual_dropout: Some(self.resid_pdrop),
            residual_scale: None,
            second_norm_is_last: false,
        }
    }

    /// The model's description.
    pub(super) fn describe(&self) -> Description {
        let table = |name, rows| Table { name, rows, deviation: self.initializer_range };
        Description::Decoder(Decoder {
            vocab_size: self.vocab_size,
            width: self.n_embd,
            max_positions: self.n_positions,
            tokens: table("transformer.wte", self.vocab_size),
            embedding_scale: None,
            positions: Some(table("transformer.wpe", self.n_positions)),
            embedding_dropout: Some(self.embd_pdrop),
            block_list: "transformer.h",
            blocks: vec![self.block(); self.n_layer.min(MOST_LAYERS)],
            last_norm: self.norm("transformer.ln_f"),
            head: None,
            head_scale: None,
            logit_cap: None,
        })
    }
}
