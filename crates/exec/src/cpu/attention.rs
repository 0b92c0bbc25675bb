//! Attention: each head of each sample separately, a block of queries at a time. A block's matrix of scores has a row
//! for each key and a column for each query:
//!
//! ```text
//!            queries →
//!    keys   ┌─╲─┬───┬───┐       a causal attention's blocks end with the last key that their last query attends
//!      ↓    │  ╲│   │   │       to; of what they compute, only the small triangles under the diagonal, which the
//!           └───┼─╲─┤   │       first queries of the block may not attend to, are set to minus infinity
//!               │  ╲│   │
//!               └───┼─╲─┤       with segments or a window, a block ranges from the first to the last key that any
//!                   │  ╲│       of its queries attends to; scores of other pairs are set to minus infinity, too
//!                   └───┘
//! ```
//!
//! Products (`attention_products.rs`) follow the diagonal in strips of queries, and skip the keys that no query of a
//! strip attends to.
//!
//! So the matrix library repacks only a block's queries, never all keys, and the softmax runs down columns, on vectors
//! of queries without a sum across a vector. `attention_grad.rs` processes the same blocks in the backward pass.

use super::CpuKernel;
use super::attention_block::Block;
use super::attention_products::{Operand, Products};
use super::dropout::{Columns, MOST_COLUMNS, Mask, drop_columns};
use super::half::Float;
use super::math::{exp, update};
use super::matrix::{Matrix, MatrixMut};
use super::parallel;
use super::soft_cap::forward_in_place;
use super::tiles::{in_precision, in_single, operand, split_results};
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::DType;
use plimsoll_graph::ops::{self, AttentionExtents, DROPOUT_TOKENS, EMPTY_LSE, TILE_MULTIPLE, panel_words};
use std::ops::Range;

/// Most queries of a block, so that the values for each query fit in an array. They are the columns of its mask.
pub(super) const BLOCK: usize = MOST_COLUMNS;

/// The initial maximum of scores if a query may attend to no key: below any score, but finite.
const BELOW_ALL: f32 = -1e30;

impl CpuKernel for ops::Attention {
    fn run(&self, call: Call) {
        in_precision!(call, run(self, call));
    }
}

fn run<E: Float>(op: &ops::Attention, mut call: Call) {
    let operands = Operands::<E>::new(op, &call, 0);
    let e = operands.extents;
    let products = Products::of::<E>();
    let length = op.rows.min(e.queries);
    let mask = op.dropout.map(|key| Mask::new(key, call.scalars));
    let (y, mut others) = split_results::<E>(&mut call);
    let lse: &mut [f32] = bytemuck::cast_slice_mut(others.next().expect("the op's types name each result"));
    let width = op.heads * e.head_size;
    let of_sample = |y| MatrixMut::new(y, e.queries, width).column_blocks(e.head_size);
    let items = y.chunks_exact_mut(e.queries * width).flat_map(of_sample).zip(lse.chunks_exact_mut(e.queries));
    parallel::for_each_with_scratch(
        items.enumerate(),
        call.take_scratch(),
        call.threads,
        |(item, (mut y, lse)), scratch| {
            let head = Head::new(&operands, item / op.heads, item % op.heads);
            let mut scratch = scratch;
            let (keys, values) = (products.left(head.keys, &mut scratch), products.right(head.values, &mut scratch));
            let (q, scratch) = scratch.split_at_mut(operands.panel_words(length, e.head_size));
            let (p, scratch) = scratch.split_at_mut(operands.panel_words(1, e.keys));
            let (result, scratch) = scratch.split_at_mut(operands.tile(length));
            let (bias, scratch) = scratch.split_at_mut(operands.distances());
            head.biases(bias);
            for block in head.blocks() {
                let (mut y, lse) = (y.rows(block.queries.clone()), &mut lse[block.queries.clone()]);
                if block.keys.is_empty() {
                    in_single(&mut y, result, |y| y.fill(0.0));
                    lse.fill(EMPTY_LSE);
                    continue;
                }
                let queries = products.right(head.queries.rows(block.queries.clone()).transposed(), &mut &mut *q);
                let scores = head.scores(&products, &block, queries, keys, bias, scratch);
                let mut factors = [0.0; BLOCK];
                let least = if op.segmented { BELOW_ALL } else { f32::NEG_INFINITY };
                let columns = &mut factors[..block.queries.len()];
                softmax(scores, lse, columns, least);
                if let Some(sink) = head.sink() {
                    join_sink(lse, columns, sink);
                }
                if let Some(mask) = &mask {
                    drop_columns(scores, &head.columns(&block), mask);
                }
                in_single(&mut y, result, |y| {
                    products.sum_over_keys(&block, y, scores, values, p);
                    for (row, factor) in factors[..y.row_count()].iter().enumerate() {
                        for y in y.row(row) {
                            *y *= factor;
                        }
                    }
                });
            }
        },
    );
}

/// An attention and its operands.
pub(super) struct Operands<'a, E> {
    pub(super) op: &'a ops::Attention,
    pub(super) extents: AttentionExtents,
    /// Queries, keys and values: the same slice three times if they are packed.
    streams: [&'a [E]; 3],
    table: Option<&'a [E]>,
    sinks: Option<&'a [E]>,
    segments: Option<[&'a [i32]; 2]>,
}

impl<'a, E: Float> Operands<'a, E> {
    /// The operands of a call from `first` on.
    pub(super) fn new(op: &'a ops::Attention, call: &Call<'a>, first: usize) -> Self {
        let extents = op.extents(&call.io.inputs[first..]);
        let streams = [0, 1, 2].map(|which| operand(call, first + if op.packed { 0 } else { which }));
        let table = op.table().map(|index| operand(call, first + index));
        let sinks = op.sinks().map(|index| operand(call, first + index));
        let segments = op.segments().map(|both| both.map(|index| call.i32(first + index)));
        Self { op, extents, streams, table, sinks, segments }
    }

    /// Number of distances between a query and a key; zero without a bias.
    pub(super) fn distances(&self) -> usize {
        if self.op.bias.is_some() { self.extents.queries + self.extents.keys } else { 0 }
    }

    /// Floats for operands in panels; zero in single precision.
    pub(super) fn panel_words(&self, lines: usize, terms: usize) -> usize {
        if E::DTYPE == DType::F32 { 0 } else { panel_words(lines, terms) }
    }

    /// Floats for this many rows of a head in single precision; zero if the operands are in single precision.
    pub(super) fn tile(&self, rows: usize) -> usize {
        if E::DTYPE == DType::F32 { 0 } else { rows * self.extents.head_size }
    }
}

/// One head of one sample.
pub(super) struct Head<'a, E> {
    operands: &'a Operands<'a, E>,
    sample: usize,
    index: usize,
    /// (T, D).
    pub(super) queries: Matrix<'a, E>,
    /// (S, D) each.
    pub(super) keys: Matrix<'a, E>,
    pub(super) values: Matrix<'a, E>,
    segments: Option<[&'a [i32]; 2]>,
}

impl<'a, E: Float> Head<'a, E> {
    pub(super) fn new(operands: &'a Operands<'a, E>, sample: usize, index: usize) -> Self {
        let (op, e) = (operands.op, operands.extents);
        let width = op.heads * e.head_size;
        let [queries, keys, values] = [0, 1, 2].map(|which| {
            let (tokens, stride, first) = match (op.packed, which) {
                (true, _) => (e.queries, 3 * width, which * width + index * e.head_size),
                (false, 0) => (e.queries, width, index * e.head_size),
                (false, _) => (e.keys, op.kv_heads * e.head_size, index / (op.heads / op.kv_heads) * e.head_size),
            };
            let of_sample = &operands.streams[which][sample * tokens * stride..][..tokens * stride];
            Matrix::strided(&of_sample[first..], tokens, e.head_size, stride)
        });
        let of_sample = |segments: &'a [i32], tokens: usize| &segments[sample * tokens..][..tokens];
        let segments = operands.segments.map(|[q, k]| [of_sample(q, e.queries), of_sample(k, e.keys)]);
        Self { operands, sample, index, queries, keys, values, segments }
    }

    /// The blocks, from the first queries to the last.
    pub(super) fn blocks(&self) -> impl DoubleEndedIterator<Item = Block> {
        let (queries, length) = (self.operands.extents.queries, self.operands.op.rows.min(BLOCK));
        (0..queries.div_ceil(length)).map(move |block| {
            let queries = block * length..queries.min((block + 1) * length);
            let keys = self.seen(&queries);
            Block { queries, keys, causal: self.operands.op.causal }
        })
    }

    /// From the first key to the last that any of these queries attends to. Starts with a quad, the unit of dropout's
    /// draws, and in half precision at the start of a panel.
    fn seen(&self, queries: &Range<usize>) -> Range<usize> {
        let keys = self.operands.extents.keys;
        let end = match self.operands.op.window {
            _ if self.operands.op.causal => queries.end,
            Some(window) => keys.min((queries.end - 1).saturating_add(window)),
            None => keys,
        };
        let grain = if E::DTYPE == DType::F32 { 4 } else { TILE_MULTIPLE };
        let begin = self.operands.op.window.map_or(0, |window| (queries.start + 1).saturating_sub(window));
        let Some([of_queries, of_keys]) = self.segments else { return begin / grain * grain..end };
        let wanted = &of_queries[queries.clone()];
        let mut visible = (begin..end).filter(|&key| wanted.contains(&of_keys[key]));
        match visible.next() {
            None => 0..0,
            Some(first) => first / grain * grain..visible.next_back().unwrap_or(first) + 1,
        }
    }

    /// The bias of each distance: of query i and key j at i - j + S - 1. Does nothing without a bias.
    pub(super) fn biases(&self, into: &mut [f32]) {
        let (Some(bias), Some(table)) = (&self.operands.op.bias, self.operands.table) else { return };
        for (place, into) in into.iter_mut().enumerate() {
            let at = self.bucket(bias, place) * self.operands.op.heads + self.index;
            E::widen(&table[at..=at], std::slice::from_mut(into));
        }
    }

    /// The head's sink, if it has one.
    pub(super) fn sink(&self) -> Option<f32> {
        let mut sink = 0.0;
        E::widen(&self.operands.sinks?[self.index..=self.index], std::slice::from_mut(&mut sink));
        Some(sink)
    }

    /// The bucket of the distance at `place`.
    pub(super) fn bucket(&self, bias: &ops::RelativeBias, place: usize) -> usize {
        let zero = self.operands.extents.keys - 1;
        bias.bucket(place.saturating_sub(zero), zero.saturating_sub(place))
    }

    /// The range of the distances from a key to a block's queries.
    pub(super) fn distances(&self, block: &Block, key: usize) -> Range<usize> {
        let first = block.queries.start + self.operands.extents.keys - 1 - key;
        first..first + block.queries.len()
    }

    /// The indices of a block's probabilities for dropout.
    pub(super) fn columns(&self, block: &Block) -> Columns {
        Columns {
            sample: self.sample,
            head: self.index,
            count: block.queries.len(),
            first: block.queries.start * DROPOUT_TOKENS + block.keys.start,
            step: DROPOUT_TOKENS,
        }
    }

    /// The scores (keys, queries) of a block, from its queries (D, queries) and the head's keys (keys, D), at the start
    /// of `scratch`. `bias` is the result of [`Head::biases`].
    pub(super) fn scores<'s>(
        &self,
        products: &Products,
        block: &Block,
        of_queries: Operand,
        of_keys: Operand,
        bias: &[f32],
        scratch: &'s mut [f32],
    ) -> &'s mut [f32] {
        let Range { start, end } = block.queries;
        let (keys, columns) = (block.keys.clone(), end - start);
        let scores = &mut scratch[..keys.len() * columns];
        products.key_by_query(block, scores, self.operands.op.scale, of_keys, of_queries);
        if let Some(cap) = self.operands.op.cap {
            forward_in_place(scores, cap);
        }
        if self.operands.op.bias.is_some() {
            for (scores, key) in scores.chunks_exact_mut(columns).zip(keys.clone()) {
                add(scores, &bias[self.distances(block, key)]);
            }
        }
        if let Some([of_queries, of_keys]) = self.segments {
            for (scores, segment) in scores.chunks_exact_mut(columns).zip(&of_keys[keys.clone()]) {
                for (score, of_query) in scores.iter_mut().zip(&of_queries[start..end]) {
                    *score = if of_query == segment { *score } else { f32::NEG_INFINITY };
                }
            }
        }
        if let Some(window) = self.operands.op.window {
            for (scores, key) in scores.chunks_exact_mut(columns).zip(keys.clone()) {
                scores[key.saturating_add(window).saturating_sub(start).min(columns)..].fill(f32::NEG_INFINITY);
            }
        }
        // Number of keys from its own on that a query attends to.
        let reach = if self.operands.op.causal { Some(1) } else { self.operands.op.window };
        if let Some(reach) = reach {
            let above = start.saturating_sub(keys.start);
            for (scores, key) in scores.chunks_exact_mut(columns).zip(keys).skip(above) {
                scores[..(key + 1).saturating_sub(start.saturating_add(reach)).min(columns)].fill(f32::NEG_INFINITY);
            }
        }
        scores
    }
}

/// Adds a sink to the columns that attend to a key, given the log of each column's sum and its reciprocal.
fn join_sink(lse: &mut [f32], factors: &mut [f32], sink: f32) {
    for (lse, factor) in lse.iter_mut().zip(factors).filter(|(_, factor)| **factor > 0.0) {
        let both = lse.max(sink) + (-(*lse - sink).abs()).exp().ln_1p();
        *factor *= (*lse - both).exp();
        *lse = both;
    }
}

vectorized! {
    /// into += values.
    pub(super) fn add<S: Simd>(simd: S, into: &mut [f32], values: &[f32]) {
        update!(simd, [into, values], simd.add_f32s(into, values));
    }

    /// Replaces scores (keys, queries) by their exponentials over the largest of their column, or over `least` if all
    /// are below it. Sets lse to the log of each column's sum, and factors to the reciprocals that turn the
    /// exponentials into probabilities.
    fn softmax<S: Simd>(simd: S, scores: &mut [f32], lse: &mut [f32], factors: &mut [f32], least: f32) {
        let largest = lse;
        largest.fill(least);
        for scores in scores.chunks_exact(largest.len()) {
            let largest = &mut *largest;
            update!(simd, [largest, scores], simd.max_f32s(largest, scores));
        }
        let sums = factors;
        sums.fill(0.0);
        for scores in scores.chunks_exact_mut(largest.len()) {
            let (largest, exponentials, sums) = (&*largest, &mut *scores, &mut *sums);
            update!(simd, [exponentials, largest], exp(simd, simd.sub_f32s(exponentials, largest)));
            update!(simd, [sums, scores], simd.add_f32s(sums, scores));
        }
        for (largest, sum) in largest.iter_mut().zip(sums) {
            let nothing = *sum == 0.0;
            *largest = if nothing { EMPTY_LSE } else { *largest + sum.ln() };
            *sum = if nothing { 0.0 } else { 1.0 / *sum };
        }
    }
}
