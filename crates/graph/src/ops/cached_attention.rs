//! Causal attention of a few new tokens to all earlier ones, with cached keys and values: for text generation.

use super::attention::may_cap;
use super::soft_cap::CAP_FLOPS;
use super::{Access, Example, Fill, Io, Nature, Op, Operation, RelativeBias, Target, expect_rank, expect_type};
use crate::{GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// The T new tokens of each sample are at the positions from p = `Scalars::position` on. Their keys and values are
/// written to rows p.. of the caches, and each token attends to all rows up to its own, or to the last `window` of
/// them, with the formula of [`super::Attention`].
/// q: (B, T, H·D), k and v: (B, T, K·D), or concatenated in one operand if `packed`; table: (buckets, H) if there is a
/// bias; sinks: (H,) if it `has_sinks` -> y: (B, T, H·D); keys and values: (B, P, K·D) each, updated in place. p + T
/// must not exceed P.
/// Scratch: P scores per worker. Errors: `ShapeMismatch` if the heads do not divide the channels.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CachedAttention {
    /// Number of query heads H.
    pub heads: usize,
    /// Number of key and value heads K, a divisor of H.
    pub kv_heads: usize,
    /// Whether queries, keys and values are in one operand.
    pub packed: bool,
    /// Largest number of tokens that a token attends to, including itself.
    pub window: Option<usize>,
    /// Factor of the products of queries and keys.
    pub scale: f32,
    /// The limit of scores, above zero. Not with a bias or a scale of zero.
    pub cap: Option<f32>,
    /// Bias of the scores by the distance of query and key.
    pub bias: Option<RelativeBias>,
    /// Whether each head has a sink.
    pub has_sinks: bool,
    /// Capacity P of the caches, in positions.
    pub capacity: usize,
}

impl CachedAttention {
    /// The index of the bias table among the operands, if there is one.
    pub fn table(&self) -> Option<usize> {
        self.bias.map(|_| self.streams())
    }

    /// The index of the sinks among the operands, if there are any.
    pub fn sinks(&self) -> Option<usize> {
        self.has_sinks.then_some(self.streams() + usize::from(self.bias.is_some()))
    }

    /// Number of operands with queries, keys and values.
    const fn streams(&self) -> usize {
        if self.packed { 1 } else { 3 }
    }

    /// Elements of a head, from the type of the first operand.
    pub fn head_size(&self, q: &TensorType) -> usize {
        q.columns() / self.heads / if self.packed { 3 } else { 1 }
    }
}

impl Operation for CachedAttention {
    fn name(&self) -> &'static str {
        "cached_attention"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let op = "cached_attention";
        let streams = self.streams();
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        let divided = heads > 0 && kv_heads > 0 && heads % kv_heads == 0 && (!self.packed || kv_heads == heads);
        let operands = streams + usize::from(self.bias.is_some()) + usize::from(self.has_sinks);
        if inputs.len() != operands || !divided || self.window == Some(0) || !may_cap(self.cap, self.scale, self.bias) {
            let problem = format!(
                "{} operands with {heads} heads, {kv_heads} of them of keys, and scores capped at {:?}",
                inputs.len(),
                self.cap
            );
            return Err(GraphError::ShapeMismatch { op, problem });
        }
        expect_rank(op, "q", inputs[0], 3)?;
        let (b, t, d) = (inputs[0].shape[0], inputs[0].shape[1], self.head_size(inputs[0]));
        if t > self.capacity || inputs[0].shape[2] != heads * d * if self.packed { 3 } else { 1 } {
            let problem = format!("{:?} with {heads} heads and {} positions", inputs[0].shape, self.capacity);
            return Err(GraphError::ShapeMismatch { op, problem });
        }
        for (what, ty) in ["k", "v"].into_iter().zip(&inputs[1..streams]) {
            expect_type(op, what, ty, &inputs[0].with_shape(&[b, t, kv_heads * d]))?;
        }
        if let (Some(bias), Some(table)) = (self.bias, self.table()) {
            expect_type(op, "table", inputs[table], &inputs[0].with_shape(&[bias.buckets, heads]))?;
        }
        if let Some(sinks) = self.sinks() {
            expect_type(op, "sinks", inputs[sinks], &inputs[0].with_shape(&[heads]))?;
        }
        let cache = inputs[0].with_shape(&[b, self.capacity, kv_heads * d]);
        Ok(vec![inputs[0].with_shape(&[b, t, heads * d]), cache.clone(), cache])
    }

    fn access(&self, index: usize) -> Access {
        if index == 0 { Access::Write } else { Access::ReadWrite }
    }

    fn nature(&self) -> Nature {
        Nature::Attention
    }

    fn flops(&self, io: &Io) -> u64 {
        let elements = io.outputs[0].elements() * self.window.unwrap_or(self.capacity).min(self.capacity);
        let scores = elements / self.head_size(io.inputs[0]);
        4 * elements as u64 + if self.cap.is_some() { CAP_FLOPS * scores as u64 } else { 0 }
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        match *target {
            Target::Cpu { threads } => {
                // In half precision, room to widen one query, one key or value, and one result.
                let tiles = if io.inputs[0].dtype.is_half() { 3 * self.head_size(io.inputs[0]) } else { 0 };
                Bytes(Bytes(4 * (self.capacity + tiles) as u64).align_up(64).0 * threads as u64)
            }
            // A card sums the scores in order and does not store them.
            Target::Cuda { .. } => Bytes::ZERO,
        }
    }

    fn examples() -> Vec<Example> {
        let plain = |heads| Self {
            heads,
            kv_heads: heads,
            packed: false,
            window: None,
            scale: 1.0,
            cap: None,
            bias: None,
            has_sinks: false,
            capacity: 0,
        };
        let packed = |heads, capacity, position, shape: &[usize]| {
            let scale = 1.0 / ((shape[2] / 3 / heads) as f32).sqrt();
            let op = Self { scale, capacity, kv_heads: heads, packed: true, ..plain(heads) };
            let mut example = Example::uniform(op, &[shape]);
            example.scalars.position = position;
            example
        };
        let grouped = |heads, kv_heads, bias: Option<RelativeBias>, capacity, position, [b, t, d]: [usize; 3]| {
            let op = Self { scale: 0.6, bias, capacity, kv_heads, ..plain(heads) };
            let keys = [b, t, kv_heads * d];
            let table = [bias.map_or(0, |bias| bias.buckets), heads];
            let shapes: [&[usize]; 4] = [&[b, t, heads * d], &keys, &keys, &table];
            let mut example = Example::uniform(op, &shapes[..if bias.is_some() { 4 } else { 3 }]);
            example.scalars.position = position;
            example
        };
        let bias = RelativeBias { buckets: 8, max_distance: 6, bidirectional: false };
        let windowed = |window, example: Example| {
            let Op::CachedAttention(op) = example.op else { unreachable!("examples of cached attention have this op") };
            Example { op: Self { window: Some(window), ..op }.into(), ..example }
        };
        let capped = |cap, example: Example| {
            let Op::CachedAttention(op) = example.op else { unreachable!("examples of cached attention have this op") };
            Example { op: Self { cap: Some(cap), ..op }.into(), ..example }
        };
        let with_sinks = |mut example: Example| {
            let Op::CachedAttention(op) = example.op else { unreachable!("examples of cached attention have this op") };
            example.inputs.push((TensorType::f32(&[op.heads]), Fill::Uniform));
            Example { op: Self { has_sinks: true, ..op }.into(), ..example }
        };
        vec![
            windowed(4, grouped(4, 2, None, 12, 5, [2, 3, 5])),
            windowed(1, packed(2, 9, 4, &[1, 3, 12])),
            windowed(3, grouped(2, 2, Some(bias), 15, 0, [1, 6, 3])),
            windowed(40, packed(1, 64, 50, &[1, 9, 9])),
            packed(2, 9, 4, &[1, 3, 12]),
            packed(1, 4, 0, &[1, 4, 9]),
            packed(2, 5, 1, &[3, 2, 12]),
            packed(3, 33, 32, &[1, 1, 27]),
            grouped(4, 2, None, 7, 2, [3, 3, 5]),
            grouped(2, 2, Some(bias), 15, 12, [1, 2, 3]),
            grouped(3, 1, Some(bias), 9, 0, [2, 1, 4]),
            capped(0.5, grouped(4, 2, None, 12, 5, [2, 3, 5])),
            with_sinks(grouped(4, 2, None, 12, 5, [2, 3, 5])),
            with_sinks(grouped(3, 1, Some(bias), 9, 0, [2, 1, 4])),
            with_sinks(windowed(2, capped(0.7, packed(2, 9, 4, &[1, 3, 12])))),
        ]
    }
}
