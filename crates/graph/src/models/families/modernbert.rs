//! ModernBERT: rotary positions with two bases, a window in most layers, gated GELU, norms before each part.
//! Source: Warner et al. 2024 (arXiv:2412.13663); names of parameters follow transformers' `ModernBertModel`.

use super::Architecture;
use super::encoder_sizes::EncoderSizes;
use super::reader::Reader;
use super::rope::{self, Rope};
use super::sizes::{read_activation, sliding_layers};
use crate::GraphError;
use crate::models::ContextScaling;
use crate::models::description::{
    Attention, AttentionInputs, Encoder, EncoderBlock, FeedForward, Gate, Inner, Linear, Norm, NormFormula,
    RotaryPositions, Table,
};
use crate::models::keys::bad;
use crate::ops::WeightLayout;
use serde_json::{Value, json};

pub(super) const MODERNBERT: Architecture<Encoder> = Architecture {
    model_type: "modernbert",
    class: "ModernBertModel",
    defaults: || {
        json!({
            "vocab_size": 50_368, "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22,
            "num_attention_heads": 12, "hidden_activation": "gelu", "max_position_embeddings": 8192,
            "initializer_range": 0.02, "norm_eps": 1e-5, "global_attn_every_n_layers": 3, "local_attention": 128,
        })
    },
    read,
};

fn read(keys: &mut Reader<'_>) -> Result<Encoder, GraphError> {
    let EncoderSizes { vocab_size, width, inner, layers, heads, head_size, max_positions, deviation } =
        EncoderSizes::read(keys)?;
    if !head_size.is_multiple_of(2) {
        return Err(bad(
            "num_attention_heads",
            format!("gives heads of {head_size}; rotary positions need an even number"),
        ));
    }
    let epsilon = keys.number("norm_eps")?;
    let (embedding_dropout, of_attention) = (keys.rate("embedding_dropout")?, keys.rate("attention_dropout")?);
    let of_feed_forward = keys.rate("mlp_dropout")?;
    let [norm_bias, attention_bias, mlp_bias] =
        [keys.flag("norm_bias")?, keys.flag("attention_bias")?, keys.flag("mlp_bias")?];
    let activation = read_activation(keys, "hidden_activation")?;
    // Half of it on each side of a token.
    let window = keys.size("local_attention")? / 2 + 1;
    let every = keys.size("global_attn_every_n_layers")?;
    let slides = sliding_layers(keys, layers, |layer| !layer.is_multiple_of(every))?;
    let bases = bases(keys)?;
    let linear = |name, [inputs, outputs]: [usize; 2], bias| Linear {
        name,
        inputs,
        outputs,
        layout: WeightLayout::OutIn,
        bias,
        deviation,
    };
    let norm = |name| Norm { name, formula: NormFormula::Layer { bias: norm_bias }, epsilon };
    let block = |(layer, slides): (usize, bool)| EncoderBlock {
        attention_norm: (layer > 0).then(|| norm("attn_norm")),
        attention: Attention {
            heads,
            kv_heads: heads,
            head_size,
            inputs: AttentionInputs::Packed(linear("attn.Wqkv", [width, 3 * width], attention_bias)),
            norms: None,
            rotary: Some(RotaryPositions {
                base: bases[usize::from(slides)],
                rotated: head_size,
                scaling: ContextScaling::default(),
            }),
            output: linear("attn.Wo", [width, width], attention_bias),
            causal: false,
            window: slides.then_some(window),
            scale: 1.0 / (head_size as f32).sqrt(),
            cap: None,
            sinks: None,
            bias: None,
            dropout: of_attention,
        },
        attention_dropout: Some(of_attention),
        feed_forward_norm: norm("mlp_norm"),
        feed_forward: FeedForward {
            inner: Inner::Gated { activation, layers: Gate::Packed(linear("mlp.Wi", [width, 2 * inner], mlp_bias)) },
            down: linear("mlp.Wo", [inner, width], mlp_bias),
            dropout: Some(of_feed_forward),
            experts: None,
        },
        feed_forward_dropout: None,
    };
    Ok(Encoder {
        vocab_size,
        width,
        max_positions,
        tokens: Table { name: "embeddings.tok_embeddings", rows: vocab_size, deviation },
        positions: None,
        token_types: None,
        embedding_norm: norm("embeddings.norm"),
        embedding_dropout,
        block_list: "layers",
        blocks: slides.into_iter().enumerate().map(block).collect(),
        norms_follow_sums: false,
        last_norm: Some(norm("final_norm")),
    })
}

/// The rotary bases of layers without a window and with one. Newer files have both in `rope_parameters`, older ones
/// under `global_rope_theta` and `local_rope_theta`. Errors: `BadConfig`.
fn bases(keys: &mut Reader<'_>) -> Result<[f32; 2], GraphError> {
    let named =
        [("full_attention", "global_rope_theta", 160_000.0), ("sliding_attention", "local_rope_theta", 10_000.0)];
    let mut bases = [0.0; 2];
    for (base, (kind, older, usual)) in bases.iter_mut().zip(named) {
        let theta = keys.optional_number(older)?.map_or(usual, f64::from);
        let found = keys.in_file("rope_parameters").and_then(|both| both.get(kind)).unwrap_or(&Value::Null);
        let Rope { theta, scaling, rotated } = rope::of_layers(keys, found, theta)?;
        if scaling != ContextScaling::default() || rotated != 1.0 {
            return Err(bad("rope_parameters", "scales the positions, which is not supported for ModernBERT"));
        }
        keys.record(older, theta);
        *base = theta as f32;
    }
    Ok(bases)
}
