//! Self-attention that saves only its output and the log-sum-exp of each row of scores.

use super::{DropoutKey, Example, Io, Op, Operation, Target, expect_rank, expect_type, operands};
use crate::{Backward, GraphError, TensorType};
use serde::{Deserialize, Serialize};
use units::Bytes;

/// Rows of scores that a worker holds at a time, unless the plan says otherwise.
pub const ATTENTION_ROWS: usize = 64;

/// y = softmax(q kᵀ/√D + mask) v for each head; the masked half of a causal attention is skipped.
/// qkv: (B, T, 3C), the queries, keys and values of all heads side by side, C = H·D
/// -> y: (B, T, C), lse: (B, H, T), the log of the sum of each row's exponentials.
/// Probabilities are dropped out after the softmax, if at all. Saves qkv, y, lse: linear in T.
/// Scratch: `rows` × T scores a worker. Errors: `ShapeMismatch` if the heads don't divide the channels.
/// Source: Dao et al. 2022, algorithms 1 and 4, with whole rows in place of online rescaling.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Number of heads H.
    pub heads: usize,
    /// Whether token t sees only tokens up to t.
    pub causal: bool,
    /// Dropout of the probabilities.
    pub dropout: Option<DropoutKey>,
    /// Rows of scores that a worker holds at a time.
    pub rows: usize,
}

/// Gradient of [`Attention`], which computes the probabilities anew from lse.
/// dy: (B, T, C), qkv: (B, T, 3C), y: (B, T, C), lse: (B, H, T) -> dqkv: (B, T, 3C).
/// Scratch: twice `rows` × T a worker.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AttentionGrad {
    /// The forward op's attributes.
    pub forward: Attention,
}

impl Attention {
    /// Multiply-adds of one of the T×T×D products, over all heads and samples, times two.
    fn product_flops(&self, y: &TensorType) -> u64 {
        let (b, t, c) = (y.shape[0] as u64, y.shape[1] as u64, y.shape[2] as u64);
        let pairs = if self.causal { t * (t + 1) / 2 } else { t * t };
        2 * b * pairs * c
    }

    fn scratch(&self, time: usize, buffers: usize, target: &Target) -> Bytes {
        let one = Bytes(4 * (buffers * self.rows.min(time) * time) as u64).align_up(64);
        Bytes(one.0 * target.threads as u64)
    }
}

impl Operation for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [qkv] = operands("attention", inputs)?;
        expect_rank("attention", "qkv", qkv, 3)?;
        let (b, t, c) = (qkv.shape[0], qkv.shape[1], qkv.shape[2] / 3);
        if self.heads == 0 || qkv.shape[2] % (3 * self.heads) != 0 || self.rows == 0 {
            let problem = format!("{} channels of q, k and v can't be shared by {} heads", qkv.shape[2], self.heads);
            return Err(GraphError::ShapeMismatch { op: "attention", problem });
        }
        Ok(vec![qkv.with_shape(&[b, t, c]), TensorType::f32(&[b, self.heads, t])])
    }

    fn flops(&self, io: &Io) -> u64 {
        2 * self.product_flops(io.outputs[0])
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        self.scratch(io.outputs[0].shape[1], 1, target)
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let inputs = [cx.upstream(0)?, cx.input(0), cx.output(0), cx.output(1)];
        let dqkv = cx.push(AttentionGrad { forward: *self }, &inputs)?[0];
        cx.give(0, dqkv)
    }

    fn examples() -> Vec<Example> {
        let key = Some(DropoutKey { rate: 0.3, site: 2 });
        let op = |heads, causal, dropout, rows| Self { heads, causal, dropout, rows };
        vec![
            Example::uniform(op(2, true, None, 2), &[&[2, 5, 12]]),
            Example::uniform(op(1, false, None, 64), &[&[1, 7, 9]]),
            Example::uniform(op(3, true, key, 4), &[&[2, 6, 27]]),
            Example::uniform(op(2, true, None, 16), &[&[1, 37, 30]]),
            Example::uniform(op(1, true, key, 64), &[&[2, 1, 24]]),
        ]
    }
}

impl Operation for AttentionGrad {
    fn name(&self) -> &'static str {
        "attention_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [dy, qkv, y, lse] = operands("attention_grad", inputs)?;
        let forward = self.forward.infer(&[qkv])?;
        expect_type("attention_grad", "y", y, &forward[0])?;
        expect_type("attention_grad", "dy", dy, &forward[0])?;
        expect_type("attention_grad", "lse", lse, &forward[1])?;
        Ok(vec![qkv.clone()])
    }

    fn flops(&self, io: &Io) -> u64 {
        5 * self.forward.product_flops(io.inputs[0])
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        self.forward.scratch(io.inputs[0].shape[1], 2, target)
    }

    fn examples() -> Vec<Example> {
        let grad = |example: Example| {
            let Op::Attention(forward) = example.op else { unreachable!("examples of attention hold attention") };
            let qkv = &example.inputs[0].0.shape;
            let (b, t, c) = (qkv[0], qkv[1], qkv[2] / 3);
            Example::uniform(Self { forward }, &[&[b, t, c], qkv, &[b, t, c], &[b, forward.heads, t]])
        };
        Attention::examples().into_iter().map(grad).collect()
    }
}
