//! Attention that saves only its output and the log-sum-exp of each row of scores: self-attention or cross-attention,
//! causal or not, with grouped heads, relative positions, segments, a sliding window, capped scores and sinks.

use super::soft_cap::{CAP_FLOPS, CAP_SLOPE_FLOPS, is_cap};
use super::{
    Access, DropoutKey, Example, Fill, Io, Nature, Op, Operation, TILE_MULTIPLE, Target, accumulating, expect_rank,
    expect_type, panel_words,
};
use crate::{Backward, DType, GraphError, TensorType};
use plimsoll_units::Bytes;
use serde::{Deserialize, Serialize};

/// Default number of rows of scores that a worker computes at a time.
pub const ATTENTION_ROWS: usize = 64;

/// y = softmax(scale · q kᵀ + bias + mask) v for each head; the masked half of a causal attention is skipped. With a
/// `cap`, a score is cap · tanh(scale · q kᵀ / cap).
/// q: (B, T, H·D), k and v: (B, S, K·D), or concatenated in one operand if `packed`, with S = T and K = H: (B, T,
/// 3·H·D); table: (buckets, H) if there is a `bias`; sinks: (H,) if it `has_sinks`; segments of queries (B, T) and of
/// keys (B, S), integers, if `segmented` -> y: (B, T, H·D), lse: (B, H, T), the log of the sum of each row's
/// exponentials.
/// Each key head serves H/K adjacent query heads. Token t of a causal attention attends to tokens up to t, and with a
/// `window` only to those after t - window; without causality a window is on both sides: t attends to tokens after
/// t - window and before t + window. With segments it attends only to its own segment. A query that attends to no key
/// gives zeros, with an lse of `EMPTY_LSE`.
/// A head's sink is the score of one more key, which has no value: it takes part in the softmax and in lse only. A
/// query that attends to no key does not attend to the sink either.
/// Dropout applies to the probabilities after the softmax. The probability of query i and key j is element
/// (`DROPOUT_TOKENS` · i + j) of its head's site for every T and S, so that padding does not change which ones are
/// dropped.
/// Saves its operands, y, lse: linear in T and S.
/// Scratch: `rows` × S scores per worker, or `rows` × (window, on each side, + `rows` + a tile) if that is less, and with
/// a bias T + S of its values; in half precision also a head and a block of queries in panels.
/// Errors: `ShapeMismatch` if operands do not match, the heads do not divide the channels, or there are a cap and a
/// bias.
/// Source: Dao et al. 2022, algorithms 1 and 4, with whole rows in place of online rescaling; Ainslie et al. 2023 for
/// grouped heads; Jiang et al. 2023 for the window; Gemma Team 2024, "Gemma 2", section 2, for the cap; Agarwal et al.
/// 2025, "gpt-oss", section 2, for sinks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Number of query heads H.
    pub heads: usize,
    /// Number of key and value heads K, a divisor of H.
    pub kv_heads: usize,
    /// Whether queries, keys and values are in one operand.
    pub packed: bool,
    /// Whether token t attends only to tokens up to t.
    pub causal: bool,
    /// Largest number of tokens that a token attends to in each direction, including itself. Needs as many keys as
    /// queries.
    pub window: Option<usize>,
    /// Factor of the products of queries and keys.
    pub scale: f32,
    /// The limit of scores, above zero. Not with a bias or a scale of zero.
    pub cap: Option<f32>,
    /// Bias of the scores by the distance of query and key.
    pub bias: Option<RelativeBias>,
    /// Whether each head has a sink.
    pub has_sinks: bool,
    /// Whether tokens attend only to their own segment.
    pub segmented: bool,
    /// Dropout of the probabilities.
    pub dropout: Option<DropoutKey>,
    /// Rows of scores that a worker computes at a time.
    pub rows: usize,
}

/// Whether a card of this compute capability computes attention of this type and head size on its tensor cores. Those
/// of 7.5 do not support `Bf16`, and shared memory has no space for tiles of heads with more than 128 elements.
pub fn attends_on_tensor_cores(dtype: DType, head_size: usize, compute_capability: (u8, u8)) -> bool {
    match dtype {
        DType::F16 => compute_capability >= (8, 0) || head_size <= 128,
        DType::Bf16 => compute_capability >= (8, 0),
        _ => false,
    }
}

/// Number of queries in a tile on a card. Each tile has its own partial gradient of a bias table.
pub fn card_queries(dtype: DType, head_size: usize, compute_capability: (u8, u8)) -> usize {
    if attends_on_tensor_cores(dtype, head_size, compute_capability) { 64 } else { 32 }
}

/// Largest number of buckets of a bias.
pub const MOST_BUCKETS: usize = 128;

/// Largest number of queries and of keys of an attention with dropout: their indices have 17 bits.
pub const DROPOUT_TOKENS: usize = 1 << 17;

/// The dropout site of a head's probabilities: its index has 22 bits.
pub const fn dropout_site_of_head(site: u32, head: usize) -> u32 {
    site | (head as u32) << 22
}

/// Whether attention may have this cap with this scale and bias.
pub(super) fn may_cap(cap: Option<f32>, scale: f32, bias: Option<RelativeBias>) -> bool {
    cap.is_none_or(|cap| is_cap(cap) && scale != 0.0 && bias.is_none())
}

/// The lse of a query that attends to no key. It is so large that the exponential of any score minus it is zero.
pub const EMPTY_LSE: f32 = 1e30;

/// A learned number for each head and bucket of distances: each small distance has its own bucket, large ones share
/// logarithmically wider ones. Source: Raffel et al. 2020, section 2.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelativeBias {
    /// Number of buckets of both directions together.
    pub buckets: usize,
    /// Distances of at least this share the last bucket.
    pub max_distance: usize,
    /// Whether keys after the query have their own buckets; otherwise they share the bucket of distance zero.
    pub bidirectional: bool,
}

impl RelativeBias {
    /// The bucket for a query and a key at these positions.
    pub fn bucket(&self, query: usize, key: usize) -> usize {
        let (buckets, ahead) = if self.bidirectional { (self.buckets / 2, key > query) } else { (self.buckets, false) };
        let distance = if self.bidirectional { query.abs_diff(key) } else { query.saturating_sub(key) };
        let exact = buckets / 2;
        let first = if ahead { buckets } else { 0 };
        if distance < exact {
            return first + distance;
        }
        // In single precision, as in the models' training.
        let part = (distance as f32 / exact as f32).ln() / (self.max_distance as f32 / exact as f32).ln();
        let wide = exact + (part * (buckets - exact) as f32) as usize;
        first + wide.min(buckets - 1)
    }
}

/// Gradient of [`Attention`]; recomputes the probabilities from lse.
/// dy: (B, T, H·D), the forward op's operands, y, lse -> gradients of q, k and v, or of their packed operand; that of
/// the bias table, `F32`, if `table`; and that of the sinks, `F32`, if `sinks`: -Σ exp(sink - lse) · (dy · y) over the
/// rows of a head.
/// Scratch: twice `rows` × S per worker, three times with a cap; with a bias 2 (T + S) of its values per worker, and
/// B × H partial tables; with sinks B × H floats; in half precision also a head, a block of queries and the head's
/// gradients. On a card B × H × T floats, and B × H × T / [`card_queries`] partial tables.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AttentionGrad {
    /// The forward op's attributes.
    pub forward: Attention,
    /// Whether the gradient of the bias table is computed.
    pub table: bool,
    /// Whether the gradient of the sinks is computed.
    pub sinks: bool,
    /// Whether the gradients of the table and of the sinks are added to the existing values.
    pub accumulate: bool,
}

/// Extents of an attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionExtents {
    /// Samples B.
    pub samples: usize,
    /// Queries per sample, T.
    pub queries: usize,
    /// Keys per sample, S.
    pub keys: usize,
    /// Elements of a head, D.
    pub head_size: usize,
}

impl Attention {
    /// Number of operands with queries, keys and values.
    pub const fn streams(&self) -> usize {
        if self.packed { 1 } else { 3 }
    }

    /// The index of the bias table among the operands, if there is one.
    pub fn table(&self) -> Option<usize> {
        self.bias.map(|_| self.streams())
    }

    /// The index of the sinks among the operands, if there are any.
    pub fn sinks(&self) -> Option<usize> {
        self.has_sinks.then_some(self.streams() + usize::from(self.bias.is_some()))
    }

    /// The indices of the segments of queries and keys among the operands, if there are any.
    pub fn segments(&self) -> Option<[usize; 2]> {
        let first = self.streams() + usize::from(self.bias.is_some()) + usize::from(self.has_sinks);
        self.segmented.then_some([first, first + 1])
    }

    /// Number of operands.
    pub fn operands(&self) -> usize {
        let learned = usize::from(self.bias.is_some()) + usize::from(self.has_sinks);
        self.streams() + learned + if self.segmented { 2 } else { 0 }
    }

    /// The extents, from the types of the operands.
    pub fn extents(&self, inputs: &[&TensorType]) -> AttentionExtents {
        let (q, keys) = (&inputs[0].shape, &inputs[self.streams().min(2) - 1].shape);
        let width = if self.packed { q[2] / 3 } else { q[2] };
        AttentionExtents { samples: q[0], queries: q[1], keys: keys[1], head_size: width / self.heads }
    }

    /// Number of scores, over all heads and samples.
    fn scores(&self, e: &AttentionExtents) -> u64 {
        let (t, s) = (e.queries as u64, e.keys as u64);
        let triangle = |t: u64| t * (t + 1) / 2;
        // With a window the pairs form a band: a smaller triangle on each side is outside of all windows.
        let hidden = self.window.map_or(0, |window| t.saturating_sub(window as u64));
        let pairs = if self.causal { triangle(t) - triangle(hidden) } else { t * s - 2 * triangle(hidden) };
        pairs * (e.samples * self.heads) as u64
    }

    /// Operations of `products` products of T×S×D, and of `caps` caps of scores or their slopes.
    fn flops_of(&self, e: &AttentionExtents, products: u64, caps: u64) -> u64 {
        let of_score = products * 2 * e.head_size as u64 + if self.cap.is_some() { caps } else { 0 };
        self.scores(e) * of_score
    }

    /// Floats of scratch per worker: `buffers` blocks of scores, and the same number of bias values if there is a bias.
    pub fn worker_scratch(&self, e: &AttentionExtents, buffers: usize) -> usize {
        let bias = if self.bias.is_some() { e.queries + e.keys } else { 0 };
        (buffers * (self.rows.min(e.queries) * self.keys_of_block(e) + bias)).next_multiple_of(16)
    }

    /// Largest number of keys that a block of queries attends to. The first key is rounded down to the start of a
    /// panel.
    fn keys_of_block(&self, e: &AttentionExtents) -> usize {
        let sides = if self.causal { 1 } else { 2 };
        let within =
            |window: usize| window.saturating_mul(sides).saturating_add(self.rows.min(e.queries) + TILE_MULTIPLE);
        self.window.map_or(e.keys, |window| e.keys.min(within(window)))
    }

    /// Floats per worker of the processor in half precision: panels of a head, of a block of queries and of a block of
    /// scores, and a block of results.
    fn worker_panels(&self, e: &AttentionExtents, dtype: DType) -> usize {
        let (rows, d) = (self.rows.min(e.queries), e.head_size);
        let of_head = panel_words(e.keys, d) + panel_words(d, e.keys);
        let of_block = panel_words(rows, d) + panel_words(1, e.keys) + rows * d;
        if dtype.is_half() { of_head + of_block } else { 0 }
    }

    /// The same for the gradient, with the results of a head.
    fn worker_panels_of_gradient(&self, e: &AttentionExtents, dtype: DType) -> usize {
        let (rows, d) = (self.rows.min(e.queries), e.head_size);
        let of_head = 2 * panel_words(e.keys, d) + panel_words(d, e.keys) + 2 * e.keys * d;
        let panels = 2 * (panel_words(rows, d) + panel_words(d, rows));
        let of_block = panels + panel_words(1, e.keys.max(rows)) + rows * d;
        if dtype.is_half() { of_head + of_block } else { 0 }
    }

    /// Floats that a card computes before its tiles: for each query of each head, the dot product of the output and its
    /// gradient. Source: Dao et al. 2022, "FlashAttention", appendix B.2.
    pub fn products_with_output(&self, e: &AttentionExtents) -> usize {
        (e.samples * self.heads * e.queries).next_multiple_of(16)
    }

    /// Floats of the partial gradients of the bias table, one for each head of each sample and each tile of queries.
    pub fn partial_tables(&self, e: &AttentionExtents, tiles: usize) -> usize {
        self.bias.map_or(0, |bias| e.samples * self.heads * tiles * bias.buckets).next_multiple_of(16)
    }

    /// Floats of the partial gradients of the sinks on the processor, one for each head of each sample.
    pub fn partial_sinks(&self, e: &AttentionExtents) -> usize {
        if self.has_sinks { (e.samples * self.heads).next_multiple_of(16) } else { 0 }
    }

    fn check(&self, op: &'static str, inputs: &[&TensorType]) -> Result<(), GraphError> {
        let bad = |problem: String| Err(GraphError::ShapeMismatch { op, problem });
        if inputs.len() != self.operands() {
            return bad(format!("takes {} operands, found {}", self.operands(), inputs.len()));
        }
        for (what, ty) in ["q", "k", "v"].into_iter().zip(&inputs[..self.streams()]) {
            expect_rank(op, what, ty, 3)?;
        }
        let width = inputs[0].shape[2] / if self.packed { 3 } else { 1 };
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        let divided = heads > 0 && kv_heads > 0 && heads.is_multiple_of(kv_heads) && width.is_multiple_of(heads);
        let whole = !self.packed || (kv_heads == heads && inputs[0].shape[2] == 3 * width);
        if !divided || !whole || self.rows == 0 {
            let shape = &inputs[0].shape;
            return bad(format!("{shape:?} can't be shared by {heads} heads, {kv_heads} of them of keys"));
        }
        let e = self.extents(inputs);
        if self.dropout.is_some() && (e.queries.max(e.keys) > DROPOUT_TOKENS || heads > 1 << 10) {
            return bad(format!("{} queries, {} keys and {heads} heads with dropout", e.queries, e.keys));
        }
        if (self.causal || self.window.is_some()) && e.queries != e.keys {
            let (causal, window) = (self.causal, self.window);
            return bad(format!(
                "causal: {causal}, window: {window:?}, with {} queries and {} keys",
                e.queries, e.keys
            ));
        }
        if self.window == Some(0) {
            return bad("a window of 0 tokens".to_owned());
        }
        if !may_cap(self.cap, self.scale, self.bias) {
            let (cap, scale, has_bias) = (self.cap, self.scale, self.bias.is_some());
            return bad(format!("scores capped at {cap:?}, with a scale of {scale}, with a bias: {has_bias}"));
        }
        if !self.packed {
            let keys = inputs[0].with_shape(&[e.samples, e.keys, kv_heads * e.head_size]);
            expect_type(op, "k", inputs[1], &keys)?;
            expect_type(op, "v", inputs[2], &keys)?;
        }
        if let (Some(bias), Some(table)) = (&self.bias, self.table()) {
            expect_type(op, "table", inputs[table], &inputs[0].with_shape(&[bias.buckets, heads]))?;
            if bias.buckets < 4
                || bias.buckets > MOST_BUCKETS
                || bias.buckets % 2 != 0
                || bias.max_distance <= bias.buckets / 2
            {
                return bad(format!("{} buckets of distances up to {}", bias.buckets, bias.max_distance));
            }
        }
        if let Some(sinks) = self.sinks() {
            expect_type(op, "sinks", inputs[sinks], &inputs[0].with_shape(&[heads]))?;
        }
        if let Some([of_queries, of_keys]) = self.segments() {
            expect_type(op, "segments of queries", inputs[of_queries], &TensorType::i32(&[e.samples, e.queries]))?;
            expect_type(op, "segments of keys", inputs[of_keys], &TensorType::i32(&[e.samples, e.keys]))?;
        }
        Ok(())
    }
}

impl Operation for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        self.check("attention", inputs)?;
        let e = self.extents(inputs);
        let y = inputs[0].with_shape(&[e.samples, e.queries, self.heads * e.head_size]);
        Ok(vec![y, TensorType::f32(&[e.samples, self.heads, e.queries])])
    }

    fn nature(&self) -> Nature {
        Nature::Attention
    }

    fn flops(&self, io: &Io) -> u64 {
        self.flops_of(&self.extents(&io.inputs), 2, CAP_FLOPS)
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        match *target {
            Target::Cpu { threads } => {
                let e = self.extents(&io.inputs);
                let of_worker = self.worker_scratch(&e, 1) + self.worker_panels(&e, io.inputs[0].dtype);
                Bytes(4 * (threads * of_worker.next_multiple_of(16)) as u64)
            }
            // Tiles of scores stay on chip.
            Target::Cuda { .. } => Bytes::ZERO,
        }
    }

    fn backward(&self, cx: &mut Backward) -> Result<(), GraphError> {
        let inputs = [&[cx.upstream(0)?], cx.inputs(), &[cx.output(0), cx.output(1)]].concat();
        let streams = self.streams();
        let trained = cx.trained(&self.table().into_iter().chain(self.sinks()).collect::<Vec<_>>());
        let [table, sinks] =
            [self.table(), self.sinks()].map(|operand| operand.is_some_and(|index| trained.contains(&index)));
        let make = |accumulate| AttentionGrad { forward: *self, table, sinks, accumulate }.into();
        let gradients = cx.push_to_parameters(make, &inputs, &vec![None; streams], &trained)?;
        for (index, &gradient) in gradients[..streams].iter().enumerate() {
            cx.give(index, gradient)?;
        }
        Ok(())
    }

    fn examples() -> Vec<Example> {
        let key = Some(DropoutKey { rate: 0.3, site: 2 });
        let packed = |heads, causal, dropout, rows, shape: &[usize]| {
            let scale = 1.0 / ((shape[2] / 3 / heads) as f32).sqrt();
            let op = Self {
                heads,
                kv_heads: heads,
                packed: true,
                causal,
                window: None,
                scale,
                cap: None,
                bias: None,
                has_sinks: false,
                segmented: false,
                dropout,
                rows,
            };
            Example::uniform(op, &[shape])
        };
        let mut examples = vec![
            packed(2, true, None, 2, &[2, 5, 12]),
            packed(1, false, None, 64, &[1, 7, 9]),
            packed(3, true, key, 4, &[2, 6, 27]),
            packed(2, true, None, 16, &[1, 37, 30]),
            packed(1, true, key, 64, &[2, 1, 24]),
        ];
        let near = RelativeBias { buckets: 8, max_distance: 6, bidirectional: false };
        let both = RelativeBias { bidirectional: true, ..near };
        let cases = [
            // heads, heads of keys, causal, bias, segmented, dropout, rows, [B, T, S, D]
            (4, 2, true, None, false, None, 4, [2, 6, 6, 5]),
            (3, 1, true, None, true, key, 2, [1, 9, 9, 4]),
            (2, 2, false, Some(both), true, None, 3, [2, 7, 7, 3]),
            (2, 2, true, Some(near), false, key, 4, [2, 11, 11, 4]),
            (2, 1, false, None, true, None, 64, [2, 3, 10, 6]),
            (1, 1, false, Some(both), false, None, 1, [1, 1, 1, 2]),
        ];
        for (heads, kv_heads, causal, bias, segmented, dropout, rows, [b, t, s, d]) in cases {
            let plain = Self {
                heads,
                kv_heads,
                packed: false,
                causal,
                window: None,
                scale: 0.7,
                cap: None,
                bias,
                has_sinks: false,
                segmented,
                dropout,
                rows,
            };
            examples.push(plain.example([b, t, s, d]));
            // A window that excludes most keys, and one that ends within a block of queries.
            let windows = [3, rows + 1].into_iter().filter(|_| causal);
            examples.extend(windows.map(|window| Self { window: Some(window), ..plain }.example([b, t, s, d])));
        }
        let long = Self {
            heads: 2,
            kv_heads: 1,
            packed: false,
            causal: true,
            window: Some(21),
            scale: 0.4,
            cap: None,
            bias: None,
            has_sinks: false,
            segmented: false,
            dropout: key,
            rows: 64,
        };
        examples.push(long.example([1, 150, 150, 6]));
        examples.push(Self { window: Some(1), dropout: None, rows: 16, ..long }.example([1, 40, 40, 4]));
        // The largest heads that cards support.
        examples.push(Self { window: Some(3), dropout: None, rows: 4, ..long }.example([1, 7, 7, 256]));
        // Scores that reach most of the cap, with and without what hides them.
        let capped = Self { heads: 4, window: None, scale: 1.5, cap: Some(0.8), dropout: None, rows: 4, ..long };
        examples.push(Self { causal: false, ..capped }.example([2, 5, 9, 6]));
        examples.push(Self { window: Some(3), segmented: true, dropout: key, ..capped }.example([1, 11, 11, 5]));
        let with_sinks = Self { cap: None, has_sinks: true, ..capped };
        examples.push(with_sinks.example([2, 6, 6, 5]));
        examples.push(Self { causal: false, segmented: true, dropout: key, ..with_sinks }.example([2, 4, 7, 3]));
        examples.push(Self { window: Some(3), cap: Some(1.2), ..with_sinks }.example([1, 9, 9, 4]));
        examples.push(Self { bias: Some(near), ..with_sinks }.example([1, 7, 7, 4]));
        // Windows on both sides, within a block of queries and over several.
        let both_sides = Self { causal: false, ..long };
        examples.push(both_sides.example([1, 150, 150, 6]));
        examples.push(Self { window: Some(1), dropout: None, rows: 16, ..both_sides }.example([1, 40, 40, 4]));
        examples.push(Self { window: Some(3), segmented: true, rows: 4, ..both_sides }.example([2, 11, 11, 5]));
        examples
    }
}

impl Attention {
    /// An example with operands of the extents B, T, S, D. Not for packed operands.
    pub fn example(self, [b, t, s, d]: [usize; 4]) -> Example {
        let keys = vec![b, s, self.kv_heads * d];
        let mut shapes = vec![vec![b, t, self.heads * d], keys.clone(), keys];
        shapes.extend(self.bias.map(|bias| vec![bias.buckets, self.heads]));
        shapes.extend(self.sinks().map(|_| vec![self.heads]));
        if self.segmented {
            shapes.extend([vec![b, t], vec![b, s]]);
        }
        let shapes = shapes.iter().map(Vec::as_slice).collect::<Vec<_>>();
        let mut example = Example::uniform(self, &shapes);
        for index in self.segments().into_iter().flatten() {
            // In any order; in long rows, in runs.
            example = example.fill(index, if s > 64 { Fill::Runs(48) } else { Fill::Index(3) });
        }
        example
    }
}

impl Operation for AttentionGrad {
    fn name(&self) -> &'static str {
        "attention_grad"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, GraphError> {
        let count = self.forward.operands();
        if inputs.len() != count + 3 {
            let problem = format!("takes {} operands, found {}", count + 3, inputs.len());
            return Err(GraphError::ShapeMismatch { op: "attention_grad", problem });
        }
        let operands = &inputs[1..=count];
        self.forward.check("attention_grad", operands)?;
        let forward = self.forward.infer(operands)?;
        expect_type("attention_grad", "dy", inputs[0], &forward[0])?;
        expect_type("attention_grad", "y", inputs[count + 1], &forward[0])?;
        expect_type("attention_grad", "lse", inputs[count + 2], &forward[1])?;
        let streams = operands[..self.forward.streams()].iter().map(|&ty| ty.clone());
        let table = self.forward.table().filter(|_| self.table);
        let learned = table.into_iter().chain(self.forward.sinks().filter(|_| self.sinks));
        Ok(streams.chain(learned.map(|index| operands[index].with_dtype(DType::F32))).collect())
    }

    fn access(&self, index: usize) -> Access {
        accumulating(self.accumulate && index >= self.forward.streams())
    }

    fn nature(&self) -> Nature {
        Nature::Attention
    }

    fn flops(&self, io: &Io) -> u64 {
        self.forward.flops_of(&self.forward.extents(&io.inputs[1..]), 5, CAP_FLOPS + CAP_SLOPE_FLOPS)
    }

    fn scratch(&self, io: &Io, target: &Target) -> Bytes {
        let e = self.forward.extents(&io.inputs[1..]);
        let (rows, tiles) = match *target {
            Target::Cpu { threads } => {
                let panels = self.forward.worker_panels_of_gradient(&e, io.inputs[1].dtype);
                let worker = self.forward.worker_scratch(&e, self.score_buffers()) + panels;
                (threads * worker.next_multiple_of(16) + self.forward.partial_sinks(&e), 1)
            }
            Target::Cuda { compute_capability, .. } => {
                let queries = card_queries(io.inputs[1].dtype, e.head_size, compute_capability);
                (self.forward.products_with_output(&e), e.queries.div_ceil(queries))
            }
        };
        Bytes(4 * (rows + self.forward.partial_tables(&e, tiles)) as u64)
    }

    fn examples() -> Vec<Example> {
        let grad = |(index, example): (usize, Example)| {
            let Op::Attention(forward) = example.op else { unreachable!("examples of attention hold attention") };
            Self { accumulate: index % 2 == 1, ..Self::of_all(forward) }.of(&example)
        };
        let frozen = |example: &Example| match example.op {
            Op::AttentionGrad(op) if op.table || op.sinks => {
                Some(Example { op: Self { table: false, sinks: false, ..op }.into(), ..example.clone() })
            }
            _ => None,
        };
        let trained = Attention::examples().into_iter().enumerate().map(grad).collect::<Vec<_>>();
        let frozen = trained.iter().filter_map(frozen).collect();
        [trained, frozen].concat()
    }
}

impl AttentionGrad {
    /// The gradient of everything that an attention learns; sets it.
    pub const fn of_all(forward: Attention) -> Self {
        Self { forward, table: forward.bias.is_some(), sinks: forward.has_sinks, accumulate: false }
    }

    /// Blocks of scores that a worker of the processor has in memory: probabilities, their gradients, and with a cap
    /// its slopes.
    pub const fn score_buffers(&self) -> usize {
        if self.forward.cap.is_some() { 3 } else { 2 }
    }

    /// An example with operands of the extents B, T, S, D. Not for packed operands.
    pub fn example(self, extents: [usize; 4]) -> Example {
        self.of(&self.forward.example(extents))
    }

    /// The example for the gradient of a forward example.
    fn of(self, forward: &Example) -> Example {
        let operands = forward.inputs.iter().map(|(ty, _)| ty).collect::<Vec<_>>();
        let results = self.forward.infer(&operands).expect("examples are well-typed");
        let types = [&results[0]].into_iter().chain(operands).chain(&results);
        let shapes = types.map(|ty| ty.shape.as_slice()).collect::<Vec<_>>();
        let mut example = Example::uniform(self, &shapes);
        for index in self.forward.segments().into_iter().flatten() {
            example = example.fill(index + 1, forward.inputs[index].1);
        }
        example
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of `T5Attention._relative_position_bucket` of transformers 5.23 with 32 buckets up to 128.
    #[test]
    fn buckets_equal_t5s() {
        let both = RelativeBias { buckets: 32, max_distance: 128, bidirectional: true };
        let ahead = [0, 1, 7, 8, 11, 12, 15, 16, 22, 23, 31, 32, 45, 46, 63, 64, 90, 91, 127, 128, 1000];
        let found = ahead.map(|distance| both.bucket(0, distance));
        let expected = [0, 17, 23, 24, 24, 25, 25, 26, 26, 27, 27, 28, 28, 29, 29, 30, 30, 31, 31, 31, 31];
        assert_eq!(found, expected);
        assert_eq!([1, 8, 64].map(|distance| both.bucket(distance, 0)), [1, 8, 14]);
        let behind = RelativeBias { bidirectional: false, ..both };
        assert_eq!([0, 15, 16, 20, 64, 127, 500].map(|query| behind.bucket(query, 0)), [0, 15, 16, 17, 26, 31, 31]);
        assert_eq!(behind.bucket(3, 9), 0);
    }

    #[test]
    fn a_relative_bias_needs_even_buckets_and_a_distance_beyond_the_exact_ones() {
        let inferred = |buckets, max_distance| {
            let bias = Some(RelativeBias { buckets, max_distance, bidirectional: true });
            let op = Attention {
                heads: 1,
                kv_heads: 1,
                packed: false,
                causal: false,
                window: None,
                scale: 1.0,
                cap: None,
                bias,
                has_sinks: false,
                segmented: false,
                dropout: None,
                rows: 4,
            };
            let example = op.example([1, 3, 3, 4]);
            op.infer(&example.inputs.iter().map(|(ty, _)| ty).collect::<Vec<_>>())
        };
        assert!(inferred(8, 5).is_ok());
        for (buckets, max_distance) in [(2, 9), (7, 9), (8, 4), (MOST_BUCKETS + 2, 2 * MOST_BUCKETS)] {
            assert!(inferred(buckets, max_distance).is_err(), "{buckets} buckets up to {max_distance}");
        }
    }

    /// A window of 3 in 5 tokens: 1 + 2 + 3 + 3 + 3 scores; on both sides 3 + 4 + 5 + 4 + 3.
    #[test]
    fn arithmetic_counts_visible_scores_and_their_caps() {
        let Op::Attention(plain) = Attention::examples()[0].op else { unreachable!("an example of attention") };
        let plain = Attention { packed: false, window: Some(3), ..plain };
        let capped = Attention { cap: Some(50.0), ..plain };
        let flops = |example: Example| {
            let types = example.inputs.iter().map(|(ty, _)| ty);
            example.op.flops(&Io::new(types, []))
        };
        let (scores, products) = (2 * 12, 2 * 4);
        let [one, other] = [plain, capped].map(|op| flops(op.example([1, 5, 5, 4])));
        assert_eq!([one, other], [2 * scores * products, scores * (2 * products + 10)]);
        let of_both_sides = flops(Attention { causal: false, ..plain }.example([1, 5, 5, 4]));
        assert_eq!(of_both_sides, 2 * (2 * 19) * products);
        let [one, other] = [plain, capped].map(|op| flops(AttentionGrad::of_all(op).example([1, 5, 5, 4])));
        assert_eq!([one, other], [5 * scores * products, scores * (5 * products + 14)]);
    }

    #[test]
    fn a_cap_is_above_zero_and_without_a_bias_or_a_scale_of_zero() {
        let Op::Attention(plain) = Attention::examples()[0].op else { unreachable!("an example of attention") };
        let bias = RelativeBias { buckets: 8, max_distance: 6, bidirectional: false };
        let inferred = |cap, bias| {
            let example = Attention { packed: false, cap: Some(cap), bias, ..plain }.example([1, 3, 3, 4]);
            example.op.infer(&example.inputs.iter().map(|(ty, _)| ty).collect::<Vec<_>>())
        };
        assert!(inferred(50.0, None).is_ok());
        let unscaled = Attention { packed: false, cap: Some(50.0), scale: 0.0, ..plain }.example([1, 3, 3, 4]);
        assert!(unscaled.op.infer(&unscaled.inputs.iter().map(|(ty, _)| ty).collect::<Vec<_>>()).is_err());
        for (cap, bias) in [(0.0, None), (-1.0, None), (f32::NAN, None), (f32::INFINITY, None), (50.0, Some(bias))] {
            assert!(inferred(cap, bias).is_err(), "{cap}, with a bias: {}", bias.is_some());
        }
    }
}
