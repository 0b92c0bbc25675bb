//! BERT: learned positions, types of tokens, norms after each part, GELU. Its pooler, a layer for the first token that
//! sentence encoders with mean pooling do not use, is left out. Source: Devlin et al. 2018 (arXiv:1810.04805); names of
//! parameters follow transformers' `BertModel`.

use super::Architecture;
use super::encoder_sizes::EncoderSizes;
use super::reader::Reader;
use super::sizes::read_activation;
use crate::GraphError;
use crate::models::description::{
    Attention, AttentionInputs, Encoder, EncoderBlock, FeedForward, Inner, Linear, Norm, NormFormula, Table,
};
use crate::models::keys::bad;
use crate::ops::{Activation, WeightLayout};
use serde_json::json;

pub(super) const BERT: Architecture<Encoder> = Architecture {
    model_type: "bert",
    class: "BertModel",
    defaults: || {
        json!({
            "vocab_size": 30_522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
            "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1, "max_position_embeddings": 512, "type_vocab_size": 2,
            "initializer_range": 0.02, "layer_norm_eps": 1e-12,
        })
    },
    read,
};

fn read(keys: &mut Reader<'_>) -> Result<Encoder, GraphError> {
    let EncoderSizes { vocab_size, width, inner, layers, heads, head_size, max_positions, deviation } =
        EncoderSizes::read(keys)?;
    let (types, epsilon) = (keys.size("type_vocab_size")?, keys.number("layer_norm_eps")?);
    let (dropout, of_attention) = (keys.rate("hidden_dropout_prob")?, keys.rate("attention_probs_dropout_prob")?);
    if keys.flag("is_decoder")? {
        return Err(bad("is_decoder", "is true, but BERT is supported as an encoder only"));
    }
    if let Some(kind) = keys.in_file("position_embedding_type").filter(|kind| **kind != json!("absolute")) {
        return Err(bad("position_embedding_type", format!("is {kind}; only \"absolute\" is supported")));
    }
    let activation = read_activation(keys, "hidden_act")?;
    let linear = |name, [inputs, outputs]: [usize; 2]| Linear {
        name,
        inputs,
        outputs,
        layout: WeightLayout::OutIn,
        bias: true,
        deviation,
    };
    let up = linear("intermediate.dense", [width, inner]);
    let up = match activation {
        Activation::Gelu => Inner::ExactGelu(up),
        Activation::GeluTanh => Inner::Gelu(up),
        Activation::Relu => Inner::Relu(up),
        Activation::Silu => return Err(bad("hidden_act", "is \"silu\", which BERT does not support here")),
    };
    let of_queries = |name| linear(name, [width, width]);
    let attention = Attention {
        heads,
        kv_heads: heads,
        head_size,
        inputs: AttentionInputs::Separate(
            ["attention.self.query", "attention.self.key", "attention.self.value"].map(of_queries),
        ),
        norms: None,
        rotary: None,
        output: linear("attention.output.dense", [width, width]),
        causal: false,
        window: None,
        scale: 1.0 / (head_size as f32).sqrt(),
        cap: None,
        sinks: None,
        bias: None,
        dropout: of_attention,
    };
    let norm = |name| Norm { name, formula: NormFormula::Layer { bias: true }, epsilon };
    let block = EncoderBlock {
        attention_norm: Some(norm("attention.output.LayerNorm")),
        attention,
        attention_dropout: Some(dropout),
        feed_forward_norm: norm("output.LayerNorm"),
        feed_forward: FeedForward {
            inner: up,
            down: linear("output.dense", [inner, width]),
            dropout: None,
            experts: None,
        },
        feed_forward_dropout: Some(dropout),
    };
    let table = |name, rows| Table { name, rows, deviation };
    Ok(Encoder {
        vocab_size,
        width,
        max_positions,
        tokens: table("embeddings.word_embeddings", vocab_size),
        positions: Some(table("embeddings.position_embeddings", max_positions)),
        token_types: Some(table("embeddings.token_type_embeddings", types)),
        embedding_norm: norm("embeddings.LayerNorm"),
        embedding_dropout: dropout,
        block_list: "encoder.layer",
        blocks: vec![block; layers],
        norms_follow_sums: true,
        last_norm: None,
    })
}
