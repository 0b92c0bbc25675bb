//! Liger's kernels for Llama's family: norms, the gated activation and rotary embeddings in place, and the output head
//! with its loss, which stores only some rows of logits at a time and computes gradients in the forward pass.
//! Not here: which modules use them (`modules/llama.rs`).
//!
//! Source: Liger-Kernel 0.8.5, `ops/rms_norm.py`, `ops/swiglu.py`, `ops/rope.py`, `ops/fused_linear_cross_entropy.py`.

use super::{autocast_to, cast_values, pad_labels};
use crate::runtime::{DType, Op, Rt, Saved, Tensor};
use crate::usage::Kind;

/// RMSNorm. x: (B, T, C), weight: (C,) -> (B, T, C). Saves x, and rstd in single precision; the gradient of x is
/// written to the memory of the result's gradient.
pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor) -> Tensor {
    const NAME: &str = "LigerRMSNormFunction";
    let x = x.contiguous();
    let op = Op::new(NAME, &[&x, weight]);
    let saved = [op.save(&x), op.save(weight)];
    let out = Tensor::new(x.rt(), x.shape(), x.dtype(), NAME);
    let rows = x.elements() / x.size(-1);
    let deviations = op.save(&Tensor::new(x.rt(), &[rows], DType::F32, NAME));
    op.finish_one(out, move |rt, gradient, needs| {
        const NAME: &str = "LigerRMSNormFunction_backward";
        let [_x, weight] = saved.map(|saved| saved.map(Saved::unpack));
        let _deviations = deviations.map(Saved::unpack);
        let gradient = gradient.contiguous();
        let of_weight = weight.filter(|_| needs[1]).map(|weight| {
            // Partial sums, one row per multiprocessor.
            let _parts = Tensor::new(rt, &[rt.gpu.multiprocessors(), weight.size(0)], DType::F32, NAME);
            let sum = Tensor::new(rt, weight.shape(), DType::F32, NAME);
            cast_values(&sum, weight.dtype())
        });
        let of_x = gradient.alias(gradient.shape().to_vec(), gradient.strides().to_vec());
        vec![Some(of_x), of_weight]
    })
}

/// `silu(gate) * up`. Both (…, C) -> (…, C). Saves both; their gradients reuse their memory.
pub(crate) fn silu_mul(gate: &Tensor, up: &Tensor) -> Tensor {
    const NAME: &str = "LigerSiLUMulFunction";
    let (gate, up) = (gate.contiguous(), up.contiguous());
    let op = Op::new(NAME, &[&gate, &up]);
    let saved = [op.save(&gate), op.save(&up)];
    let out = gate.empty_like(gate.dtype(), NAME);
    op.finish_one(out, move |_, gradient, _| {
        let _gradient = gradient.contiguous();
        let in_place = |saved: Option<Saved>| {
            saved.map(Saved::unpack).map(|saved| saved.alias(saved.shape().to_vec(), saved.strides().to_vec()))
        };
        saved.map(in_place).into()
    })
}

/// Rotary embeddings of queries and keys, (B, H, T, D) and (B, K, T, D), in place if they are stored as (B, T, H, D).
/// `angles`: cosines and sines, which are saved.
pub(crate) fn rotate(q: &Tensor, k: &Tensor, angles: &[Tensor; 2]) -> [Tensor; 2] {
    let op = Op::new("LigerRopeFunction", &[q, k]);
    let saved = angles.each_ref().map(|angle| op.save(angle));
    let rt = q.rt().clone();
    let outputs = rt.with_grad(false, || vec![by_token(q), by_token(k)]);
    let outputs = op.finish(outputs, move |_, gradients, _| {
        let _angles = saved.map(|saved| saved.map(Saved::unpack));
        gradients.iter().map(|gradient| gradient.as_ref().map(by_token)).collect()
    });
    <[Tensor; 2]>::try_from(outputs).unwrap_or_else(|_| unreachable!("the op has two outputs"))
}

/// A view of a tensor (B, H, T, D) that is stored as (B, T, H, D); a view of a copy if it is not.
fn by_token(x: &Tensor) -> Tensor {
    x.transpose(1, 2).contiguous().transpose(1, 2)
}

/// Rows per chunk: as many as make its logits the size of the hidden states, rounded up to a power of two.
/// Source: `fused_linear_cross_entropy_forward`.
fn rows_of_chunk(rows: u64, channels: u64, vocabulary: u64) -> u64 {
    rows.div_ceil(vocabulary.div_ceil(channels)).next_power_of_two().min(rows)
}

/// The causal loss of hidden states (B, T, C), the head's weight (V, C) and labels (B, T): a scalar. Saves the
/// gradients of the hidden states and the weight.
pub(crate) fn fused_linear_cross_entropy(hidden: &Tensor, weight: &Tensor, labels: &Tensor) -> Tensor {
    const NAME: &str = "LigerFusedLinearCrossEntropyFunction";
    let rt = hidden.rt().clone();
    let [_padded, labels] = pad_labels(labels);
    let (rows, channels) = (hidden.elements() / hidden.size(-1), hidden.size(-1));
    let hidden = hidden.view(&[rows, channels]);
    let op = Op::new(NAME, &[&hidden, weight]);
    let of_hidden = hidden.empty_like(hidden.dtype(), NAME);
    let of_weight = op.needs(1).then(|| weight.empty_like(weight.dtype(), NAME));
    of_weight.iter().for_each(|gradient| gradient.mark(Kind::Gradient));
    let losses = Tensor::new(&rt, &[rows], DType::F32, NAME);
    let mask = Tensor::new(&rt, &[rows], DType::Bool, "ne");
    rt.with_grad(false, || chunks(&rt, &hidden, weight, of_weight.is_some()));
    let loss = Tensor::new(&rt, &[], DType::F32, "sum");
    let saved = [op.save(&of_hidden), of_weight.as_ref().and_then(|gradient| op.save(gradient))];
    drop((losses, mask, labels, of_hidden, of_weight));
    op.finish_one(loss, move |_, _, _| saved.map(|saved| saved.map(Saved::unpack)).into())
}

/// Runs the chunks: each computes logits, overwrites them with their gradients, and adds its part to both gradients.
fn chunks(rt: &Rt, hidden: &Tensor, weight: &Tensor, weight_learns: bool) {
    let [rows, channels, vocabulary] = [hidden.size(0), hidden.size(1), weight.size(0)];
    let chunk = rows_of_chunk(rows, channels, vocabulary);
    let dtype = rt.autocast().dtype().unwrap_or(hidden.dtype());
    // Without casts, all chunks share one buffer, and products are written to their destination.
    let is_direct = dtype == hidden.dtype() && dtype == weight.dtype();
    let logits = |rows: u64| {
        let logits = Tensor::new(rt, &[rows, vocabulary], dtype, "mm");
        logits.mark(Kind::Logits);
        rt.multiply();
        logits
    };
    let buffer = is_direct.then(|| logits(chunk));
    let part = |count: u64| hidden.alias(vec![count, channels], hidden.strides().to_vec());
    // Weights of another type are cast: transposed, which is not cached, and as stored, which is.
    for start in (0..rows).step_by(usize::try_from(chunk).unwrap_or(usize::MAX)) {
        let count = chunk.min(rows - start);
        let own = (!is_direct).then(|| {
            let _part = cast_values(&part(count), dtype);
            let _turned = cast_values(weight, dtype);
            logits(count)
        });
        if !is_direct {
            let _weight = autocast_to(weight);
            drop(Tensor::new(rt, &[count, channels], dtype, "mm"));
        }
        if weight_learns && weight.dtype() == DType::F32 && !dtype.is_half() {
            // In single precision another kernel adds the product.
            drop(Tensor::new(rt, weight.shape(), DType::F32, "mm"));
        } else if weight_learns {
            drop(cast_values(&part(count), dtype));
        }
        drop(own);
    }
    drop(buffer);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example in Liger's source: 4 x 4,096 tokens, 4,096 channels and a vocabulary of 32,000 give chunks of 2,048.
    #[test]
    fn chunks_equal_ligers_example() {
        assert_eq!(rows_of_chunk(4 * 4096, 4096, 32_000), 2048);
        assert_eq!(rows_of_chunk(3 * 40, 64, 131), 64);
        assert_eq!(rows_of_chunk(7, 64, 32), 7, "at most all rows");
    }
}
