//! Attention with one kernel: `scaled_dot_product_attention` and FlashAttention.
//! Source: `native/transformers/attention.cpp`, `native/transformers/cuda/sdp_utils.cpp`, `attention.cu`,
//! `attention_backward.cu`.

use super::autocast_to;
use crate::runtime::{DType, Op, Saved, Tensor};

/// Options of attention.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sdpa {
    /// Whether a token attends only to itself and earlier tokens, if this needs no mask.
    pub causal: bool,
    /// Dropout of the probabilities. Kernels regenerate its bits from a seed; attention without a kernel stores a mask.
    pub dropout: f32,
    /// Whether the memory-efficient kernel is selected for any card.
    pub is_efficient: bool,
}

/// Attention. q: (B, H, T, D), k and v: (B, K, S, D), mask broadcast to (B, H, T, S) -> (B, H, T, D), stored as (B, T,
/// H, D). K divides H. A boolean mask is first converted to numbers (`convert_boolean_attn_mask`).
pub(crate) fn scaled_dot_product_attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    options: Sdpa,
) -> Tensor {
    let (q, k, v, mask) = (autocast_to(q), autocast_to(k), autocast_to(v), mask.map(autocast_to));
    let mask = mask.map(|mask| match mask.dtype() {
        DType::Bool => mask.empty_like(q.dtype(), "where"),
        _ => mask,
    });
    let channels = q.size(-1);
    let has_flash = q.rt().gpu.compute_capability >= (8, 0) && q.dtype().is_half();
    let aligned = if q.dtype().is_half() { 8 } else { 4 };
    // FlashAttention pads channels to a multiple of 8; the other kernel requires alignment and as many key heads as
    // query heads.
    match mask {
        mask if options.is_efficient => by_efficient(&q, &k, &v, mask),
        None if has_flash && channels <= 256 && channels % 8 == 0 => by_flash(&q, &k, &v),
        mask if q.size(1) == k.size(1) && channels % aligned == 0 => by_efficient(&q, &k, &v, mask),
        mask => by_math(&q, &k, &v, mask.as_ref(), options),
    }
}

/// A tensor (B, H, T, D) stored as (B, T, H, D).
fn by_token(like: &Tensor, shape: &[u64], op: &'static str) -> Tensor {
    Tensor::new(like.rt(), &[shape[0], shape[2], shape[1], shape[3]], like.dtype(), op).turned(1, 2)
}

fn by_flash(q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
    const NAME: &str = "_scaled_dot_product_flash_attention";
    let op = Op::new(NAME, &[q, k, v]);
    let saved = [op.save(q), op.save(k), op.save(v)];
    let read = [q, k, v].map(Tensor::materialized);
    let out = q.empty_like(q.dtype(), NAME);
    let logsumexp = Tensor::new(q.rt(), &q.shape()[..3], DType::F32, NAME);
    let seeds = [
        Tensor::new(q.rt(), &[2], DType::I64, NAME),
        Tensor::new(q.rt(), &[], DType::I64, NAME),
        Tensor::new(q.rt(), &[0], q.dtype(), NAME),
    ];
    let results = [op.save(&out), op.save(&logsumexp), op.save(&seeds[0]), op.save(&seeds[1])];
    drop((logsumexp, seeds, read));
    op.finish_one(out, move |rt, gradient, _| {
        const NAME: &str = "_scaled_dot_product_flash_attention_backward";
        let [q, k, v] = saved.map(|saved| saved.map(Saved::unpack).expect("attention saves its operands"));
        let _read = [gradient, &q, &k, &v].map(Tensor::materialized);
        let _results = results.map(|saved| saved.map(Saved::unpack));
        let [of_q, of_k, of_v] = [&q, &k, &v].map(|operand| operand.empty_like(operand.dtype(), NAME));
        let rows = q.size(0) * q.size(1) * q.size(2).next_multiple_of(128);
        let channels = q.size(3).next_multiple_of(32);
        let _rows = rt.scratch(NAME, rows * DType::F32.bytes());
        let _sums = rt.scratch(NAME, rows * channels * DType::F32.bytes());
        let heads = q.size(0) * k.size(2) * q.size(1) * q.size(3) * q.dtype().bytes();
        // With fewer key heads than query heads, the gradients of keys are first computed for each query head.
        let grouped = k.size(1) != q.size(1);
        let _expanded = grouped.then(|| [rt.scratch(NAME, heads), rt.scratch(NAME, heads)]);
        vec![Some(of_q), Some(of_k), Some(of_v)]
    })
}

fn by_efficient(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<Tensor>) -> Tensor {
    const NAME: &str = "_scaled_dot_product_efficient_attention";
    let full = [q.size(0), q.size(1), q.size(2), k.size(2)];
    let mask = mask.map(|mask| padded(&mask).expand(&full));
    let inputs = [Some(q), Some(k), Some(v), mask.as_ref()].into_iter().flatten().collect::<Vec<_>>();
    let op = Op::new(NAME, &inputs);
    let saved = inputs.iter().map(|input| op.save(input)).collect::<Vec<_>>();
    let needs_mask = inputs.len() == 4 && op.needs(3);
    let read = inputs.iter().map(|input| input.materialized()).collect::<Vec<_>>();
    let keeps = q.requires_grad() || k.requires_grad() || v.requires_grad();
    let out = by_token(q, q.shape(), NAME);
    let rows = if keeps && q.rt().records() { q.size(2).next_multiple_of(32) } else { 0 };
    let logsumexp = Tensor::new(q.rt(), &[q.size(0), q.size(1), rows], DType::F32, NAME);
    let seeds = [Tensor::new(q.rt(), &[], DType::I64, NAME), Tensor::new(q.rt(), &[], DType::I64, NAME)];
    let results = [op.save(&out), op.save(&logsumexp), op.save(&seeds[0]), op.save(&seeds[1])];
    drop((logsumexp, seeds, read));
    op.finish_one(out, move |rt, gradient, _| {
        const NAME: &str = "_scaled_dot_product_efficient_attention_backward";
        let operands = saved.into_iter().map(|saved| saved.map(Saved::unpack)).collect::<Option<Vec<_>>>();
        let operands = operands.expect("attention saves its operands");
        let _read = operands.iter().chain([gradient]).map(Tensor::materialized).collect::<Vec<_>>();
        let _results = results.map(|saved| saved.map(Saved::unpack));
        let like = |operand: &Tensor| Some(by_token(operand, operand.shape(), NAME));
        let mut gradients = operands[..3].iter().map(like).collect::<Vec<_>>();
        if let [_, _, _, mask] = &operands[..] {
            // Rows of the mask's gradient start at multiples of 16 elements.
            let [batch, heads, rows, columns] = full;
            let aligned = [batch, heads, rows, columns.next_multiple_of(16)];
            let gradient = || Tensor::new(rt, &aligned, mask.dtype(), NAME);
            gradients.push(needs_mask.then(|| {
                let gradient = gradient();
                gradient.alias(full.to_vec(), gradient.strides().to_vec())
            }));
        }
        gradients
    })
}

/// The mask, or a copy of it, with rows that start at multiples of 8 elements.
fn padded(mask: &Tensor) -> Tensor {
    let columns = mask.size(-1);
    match columns % 8 {
        0 => mask.clone(),
        _ => mask.pad_last(columns.next_multiple_of(8)).narrow(-1, columns),
    }
}

/// Attention in ops that store all scores in single precision, for cases without a kernel.
fn by_math(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>, options: Sdpa) -> Tensor {
    let (dtype, rt) = (q.dtype(), q.rt());
    let [q, k, v] = [q, k, v].map(|operand| operand.to(DType::F32));
    let q = q.scale();
    let made = (options.causal && mask.is_none()).then(|| {
        let shape = [q.size(2), k.size(2)];
        let ones = Tensor::new(rt, &shape, DType::Bool, "ones");
        let triangle = ones.empty_like(DType::Bool, "tril");
        drop(ones);
        triangle.empty_like(DType::F32, "where")
    });
    let times = q.size(1) / k.size(1);
    let (k, v) = (repeat(&k, times), repeat(&v, times));
    let mut scores = q.matmul(&k.transpose(-2, -1).scale());
    if let Some(mask) = mask.or(made.as_ref()) {
        scores = scores.add(mask);
    }
    scores = scores.softmax(None);
    scores = scores.dropout(options.dropout);
    scores.matmul(&v).to(dtype)
}

/// Repeats heads (B, K, S, D) to (B, K·n, S, D) by a copy.
fn repeat(x: &Tensor, times: u64) -> Tensor {
    if times == 1 {
        return x.clone();
    }
    let [batch, heads, length, channels] = [x.size(0), x.size(1), x.size(2), x.size(3)];
    let expanded = x.unsqueeze(2).expand(&[batch, heads, times, length, channels]);
    expanded.copied("clone").view(&[batch, heads * times, length, channels])
}
