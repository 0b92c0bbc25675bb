//! Attention by one kernel: `scaled_dot_product_attention` and FlashAttention.
//! Source: `native/transformers/attention.cpp`, `native/transformers/cuda/sdp_utils.cpp`, `attention.cu`,
//! `attention_backward.cu`.

use super::autocast_to;
use crate::runtime::{DType, Op, Saved, Tensor};

/// Attention. q: (B, H, T, D), k and v: (B, K, S, D), mask broadcast to (B, H, T, S) -> (B, H, T, D), lying as (B, T, H, D).
/// `grouped`: whether keys and values have fewer heads than queries. Dropout's draws are repeated from a seed.
pub(crate) fn scaled_dot_product_attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    grouped: bool,
) -> Tensor {
    let (q, k, v) = (autocast_to(q), autocast_to(k), autocast_to(v));
    let flash = mask.is_none()
        && q.dtype().is_half()
        && q.rt().gpu.compute_capability >= (8, 0)
        && q.size(-1) <= 256
        && q.size(-1) % 8 == 0;
    if flash { by_flash(&q, &k, &v, grouped) } else { by_efficient(&q, &k, &v, mask.map(autocast_to)) }
}

/// A tensor (B, H, T, D) that lies as (B, T, H, D).
fn by_token(like: &Tensor, shape: &[u64], op: &'static str) -> Tensor {
    Tensor::new(like.rt(), &[shape[0], shape[2], shape[1], shape[3]], like.dtype(), op).transpose(1, 2)
}

fn by_flash(q: &Tensor, k: &Tensor, v: &Tensor, grouped: bool) -> Tensor {
    const NAME: &str = "_scaled_dot_product_flash_attention";
    let op = Op::new(NAME, &[q, k, v]);
    let saved = [op.save(q), op.save(k), op.save(v)];
    let out = by_token(q, q.shape(), NAME);
    let logsumexp = Tensor::new(q.rt(), &q.shape()[..3], DType::F32, NAME);
    let seeds = [
        Tensor::new(q.rt(), &[2], DType::I64, NAME),
        Tensor::new(q.rt(), &[], DType::I64, NAME),
        Tensor::new(q.rt(), &[0], q.dtype(), NAME),
    ];
    let results = [op.save(&out), op.save(&logsumexp), op.save(&seeds[0]), op.save(&seeds[1])];
    drop((logsumexp, seeds));
    op.finish_one(out, move |rt, _, _| {
        const NAME: &str = "_scaled_dot_product_flash_attention_backward";
        let [q, k, v] = saved.map(|saved| saved.map(Saved::unpack).expect("attention saves its operands"));
        let _results = results.map(|saved| saved.map(Saved::unpack));
        let [of_q, of_k, of_v] = [&q, &k, &v].map(|operand| by_token(operand, operand.shape(), NAME));
        let rows = q.size(0) * q.size(1) * q.size(2).next_multiple_of(128);
        let channels = q.size(3).next_multiple_of(32);
        let _rows = rt.scratch(NAME, rows * DType::F32.bytes());
        let _sums = rt.scratch(NAME, rows * channels * DType::F32.bytes());
        let heads = q.size(0) * k.size(2) * q.size(1) * q.size(3) * q.dtype().bytes();
        let _expanded = grouped.then(|| [rt.scratch(NAME, heads), rt.scratch(NAME, heads)]);
        vec![Some(of_q), Some(of_k), Some(of_v)]
    })
}

fn by_efficient(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<Tensor>) -> Tensor {
    const NAME: &str = "_scaled_dot_product_efficient_attention";
    let full = [q.size(0), q.size(1), q.size(2), k.size(2)];
    let mask = mask.map(|mask| mask.expand(&full));
    let inputs = [Some(q), Some(k), Some(v), mask.as_ref()].into_iter().flatten().collect::<Vec<_>>();
    let op = Op::new(NAME, &inputs);
    let saved = inputs.iter().map(|input| op.save(input)).collect::<Vec<_>>();
    let needs_mask = inputs.len() == 4 && op.needs(3);
    let out = by_token(q, q.shape(), NAME);
    let rows = if op.needs(0) { q.size(2).next_multiple_of(32) } else { 0 };
    let logsumexp = Tensor::new(q.rt(), &[q.size(0), q.size(1), rows], DType::F32, NAME);
    let seeds = [Tensor::new(q.rt(), &[], DType::I64, NAME), Tensor::new(q.rt(), &[], DType::I64, NAME)];
    let results = [op.save(&out), op.save(&logsumexp), op.save(&seeds[0]), op.save(&seeds[1])];
    drop((logsumexp, seeds));
    op.finish_one(out, move |rt, _, _| {
        const NAME: &str = "_scaled_dot_product_efficient_attention_backward";
        let operands = saved.into_iter().map(|saved| saved.map(Saved::unpack)).collect::<Option<Vec<_>>>();
        let operands = operands.expect("attention saves its operands");
        let _results = results.map(|saved| saved.map(Saved::unpack));
        let like = |operand: &Tensor| Some(by_token(operand, operand.shape(), NAME));
        let mut gradients = operands[..3].iter().map(like).collect::<Vec<_>>();
        if operands.len() == 4 {
            gradients.push(needs_mask.then(|| Tensor::new(rt, &full, operands[3].dtype(), NAME)));
        }
        gradients
    })
}
