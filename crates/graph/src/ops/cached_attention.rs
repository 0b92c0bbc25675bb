//! Causal attention of a few new tokens to all earlier ones, whose keys and values are kept: for writing text.

use super::{Access, Example, Io, Operation, Target, expect_rank, operands};
use crate::{GraphError, TensorType};
use serde::{Deserialize, Serialize};
use units::Bytes;

/// The T new tokens stand at positions p = `Scalars::position` and following. Their keys and values are written to
/// rows p.. of the caches, and each attends to all rows up to its own.
/// qkv: (1, T, 3C) -> y: (1, T, C); keys: (P, C) and values: (P, C) are updated in place. p + T must not exceed P.
/// Scratch: P scores a worker. Errors: `ShapeMismatch` if the heads don't divide the channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedAttention {
    /// Number of heads H.
    pub heads: usize,
    /// Positions P that the caches hold.
    pub capacity: usize,
}

impl Operation for CachedAttention {
    fn name(&self) -> &'static str {
        "cached_attention"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let [qkv] = operands("cached_attention", inputs)?;
        expect_rank("cached_attention", "qkv", qkv, 3)?;
        let (b, t, c) = (qkv.shape[0], qkv.shape[1], qkv.shape[2] / 3);
        if b != 1 || t > self.capacity || self.heads == 0 || qkv.shape[2] % (3 * self.heads) != 0 {
            let problem = format!("{:?} with {} heads and {} positions", qkv.shape, self.heads, self.capacity);
            return Err(GraphError::ShapeMismatch { op: "cached_attention", problem });
        }
        let cache = qkv.with_shape(&[self.capacity, c]);
        Ok(vec![qkv.with_shape(&[b, t, c]), cache.clone(), cache])
    }

    fn access(&self, index: usize) -> Access {
        if index == 0 { Access::Write } else { Access::ReadWrite }
    }

    fn flops(&self, io: &Io) -> u64 {
        4 * (io.outputs[0].elements() * self.capacity) as u64
    }

    fn scratch(&self, _io: &Io, target: &Target) -> Bytes {
        Bytes(Bytes(4 * self.capacity as u64).align_up(64).0 * target.threads as u64)
    }

    fn examples() -> Vec<Example> {
        let case = |heads, capacity, position, shape: &[usize]| {
            let mut example = Example::uniform(Self { heads, capacity }, &[shape]);
            example.scalars.position = position;
            example
        };
        vec![case(2, 9, 4, &[1, 3, 12]), case(1, 4, 0, &[1, 4, 9]), case(3, 33, 32, &[1, 1, 27])]
    }
}
