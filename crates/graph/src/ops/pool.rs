//! One vector for each sample: the mean of its tokens, or its first token.

use super::{Example, Fill, Io, Operation, expect_rank, expect_type, operands};
use crate::{Backward, DType, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// The tokens that a sample's vector is made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The mean of all tokens.
    #[default]
    Mean,
    /// The first token, `[CLS]` in BERT.
    First,
}

/// y[b] = the mean over the tokens t whose segment is not 0, or the first token. A sample without tokens gives zeros.
/// x: (B, T, C), segments: (B, T), integers, 0 for padding -> y: (B, C) in `F32`. Scratch: none.
/// Errors: `ShapeMismatch` if operands do not match.
/// Source: Reimers & Gurevych 2019 (arXiv:1908.10084), section 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// The tokens that count.
    pub pooling: Pooling,
}

/// Gradient of [`Pool`]: dx[b, t] = dy[b] times the token's part of the sample's vector, 0 for padding.
/// dy: (B, C) in `F32`, segments: (B, T), x: (B, T, C), of which only the type is used -> dx: (B, T, C); it may overwrite
/// x. Scratch: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolGrad {
    /// The tokens that count.
    pub pooling: Pooling,
}

fn check(op: &'static str, x: &TensorType, segments: &TensorType) -> Result<TensorType, GraphError> {
    expect_rank(op, "x", x, 3)?;
    expect_type(op, "segments", segments, &TensorType { shape: x.shape[..2].into(), dtype: DType::I32 })?;
    Ok(TensorType::f32(&[x.shape[0], x.shape[2]]))
}

/// The examples' shapes of x.
const EXAMPLES: [(Pooling, [usize; 3]); 4] = [
    (Pooling::Mean, [2, 3, 5]),
    (Pooling::First, [3, 4, 7]),
    (Pooling::Mean, [1, 37, 300]),
    (Pooling::First, [2, 1, 16]),
];

impl Operation for Pool {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [x, segments] = operands("pool", inputs)?;
        Ok(vec![check("pool", x, segments)?])
    }

    fn flops(&self, io: &Io) -> u64 {
        match self.pooling {
            Pooling::Mean => io.inputs[0].elements() as u64,
            Pooling::First => 0,
        }
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let inputs = [cx.upstream(0)?, cx.input(1), cx.input(0)];
        let dx = cx.push(PoolGrad { pooling: self.pooling }, &inputs)?[0];
        cx.give(0, dx)
    }

    fn examples() -> Vec<Example> {
        let example = |(pooling, shape): (_, [usize; 3])| {
            Example::uniform(Self { pooling }, &[&shape, &shape[..2]]).fill(1, Fill::Index(3))
        };
        EXAMPLES.map(example).to_vec()
    }
}

impl Operation for PoolGrad {
    fn name(&self) -> &'static str {
        "pool_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [dy, segments, x] = operands("pool_grad", inputs)?;
        let pooled = check("pool_grad", x, segments)?;
        expect_type("pool_grad", "dy", dy, &pooled)?;
        Ok(vec![x.clone()])
    }

    fn reuse(&self) -> &'static [(usize, usize)] {
        &[(2, 0)]
    }

    fn flops(&self, io: &Io) -> u64 {
        io.outputs[0].elements() as u64
    }

    fn bytes_moved(&self, io: &Io) -> Bytes {
        io.inputs[0].bytes() + io.inputs[1].bytes() + io.outputs[0].bytes()
    }

    fn examples() -> Vec<Example> {
        let example = |(pooling, shape): (_, [usize; 3])| {
            let [b, t, c] = shape;
            Example::uniform(Self { pooling }, &[&[b, c], &[b, t], &shape]).fill(1, Fill::Index(3))
        };
        EXAMPLES.map(example).to_vec()
    }
}
