//! Causal or full self-attention: each head of each sample by itself, a block of queries at a time. The scores of a
//! block lie with a row for each key and a column for each query:
//!
//! ```text
//!            queries →
//!    keys   ┌─╲─┬───┬───┐       a causal attention's blocks end with the keys that their last query sees;
//!      ↓    │  ╲│   │   │       of what they compute, only the small triangles under the diagonal, which the
//!           └───┼─╲─┤   │       first queries of the block don't see, are set to minus infinity
//!               │  ╲│   │
//!               └───┼─╲─┤
//!                   │  ╲│
//!                   └───┘
//! ```
//!
//! So the matrix library has to repack a block's queries only and never all keys, and a softmax runs down columns:
//! on vectors of queries, without a sum across a vector. `attention_grad.rs` walks the same blocks backwards.

use super::dropout::{Columns, Mask, drop_columns};
use super::gemm::{Matrix, MatrixMut, product};
use super::math::{exp, update};
use super::parallel;
use super::vectorize::vectorized;
use crate::call::Call;
use graph::ops;
use std::ops::Range;

/// Queries of a block at most, so that what belongs to each of them fits in an array.
pub(super) const BLOCK: usize = 64;

pub(super) fn run(op: &ops::Attention, mut call: Call) {
    let qkv = call.f32(0);
    let (time, channels) = (call.io.outputs[0].shape[1], call.io.outputs[0].shape[2]);
    let mask = op.dropout.map(|key| Mask::new(key, call.scalars));
    let [y, lse] = call.take_outputs();
    let of_sample = |y| MatrixMut::new(y, time, channels).column_blocks(channels / op.heads);
    let items = y.chunks_exact_mut(time * channels).flat_map(of_sample).zip(lse.chunks_exact_mut(time)).enumerate();
    parallel::for_each_with_scratch(items, call.take_scratch(), call.threads, |(item, (mut y, lse)), scratch| {
        let head = Head::new(op, qkv, time, channels, item);
        for block in head.blocks() {
            let scores = head.scores(&block, scratch);
            let mut factors = [0.0; BLOCK];
            softmax(scores, &mut lse[block.queries.clone()], &mut factors[..block.queries.len()]);
            if let Some(mask) = &mask {
                drop_columns(scores, &head.columns(&block), mask);
            }
            let probabilities = Matrix::new(scores, block.keys, block.queries.len()).transposed();
            let mut y = y.rows(block.queries);
            product(&mut y, false, 1.0, probabilities, head.values.rows(0..block.keys), 1);
            for (row, factor) in factors[..y.row_count()].iter().enumerate() {
                for y in y.row(row) {
                    *y *= factor;
                }
            }
        }
    });
}

/// One head of one sample.
pub(super) struct Head<'a> {
    sample: usize,
    index: usize,
    time: usize,
    causal: bool,
    block_queries: usize,
    /// (T, D) each.
    pub(super) queries: Matrix<'a>,
    pub(super) keys: Matrix<'a>,
    pub(super) values: Matrix<'a>,
    /// 1/√D, which scores are multiplied by.
    pub(super) scale: f32,
}

/// Queries whose scores are held together, and how many of the keys, from the first on, they see.
pub(super) struct Block {
    pub(super) queries: Range<usize>,
    pub(super) keys: usize,
}

impl<'a> Head<'a> {
    /// Head `item`, counted over all samples.
    pub(super) fn new(op: &ops::Attention, qkv: &'a [f32], time: usize, channels: usize, item: usize) -> Self {
        let (sample, index) = (item / op.heads, item % op.heads);
        let head_size = channels / op.heads;
        let qkv = &qkv[sample * time * 3 * channels..][..time * 3 * channels];
        let [queries, keys, values] = [0, 1, 2]
            .map(|which| Matrix::strided(&qkv[which * channels + index * head_size..], time, head_size, 3 * channels));
        let scale = 1.0 / (head_size as f32).sqrt();
        let block_queries = op.rows.min(BLOCK);
        Self { sample, index, time, causal: op.causal, block_queries, queries, keys, values, scale }
    }

    /// The blocks, from the first queries to the last.
    pub(super) fn blocks(&self) -> impl DoubleEndedIterator<Item = Block> + use<> {
        let (time, causal, length) = (self.time, self.causal, self.block_queries);
        (0..time.div_ceil(length)).map(move |block| {
            let queries = block * length..time.min((block + 1) * length);
            let keys = if causal { queries.end } else { time };
            Block { queries, keys }
        })
    }

    /// The numbers by which dropout knows the probabilities of a block: of head h, query i and key j, (h·T + i)·T + j.
    pub(super) fn columns(&self, block: &Block) -> Columns {
        let first = (self.index * self.time + block.queries.start) * self.time;
        Columns { sample: self.sample, count: block.queries.len(), first, step: self.time }
    }

    /// The scores of a block (keys, queries), at the beginning of `scratch`.
    pub(super) fn scores<'s>(&self, block: &Block, scratch: &'s mut [f32]) -> &'s mut [f32] {
        let Range { start, end } = block.queries;
        let columns = end - start;
        let scores = &mut scratch[..block.keys * columns];
        let queries = self.queries.rows(start..end).transposed();
        let mut into = MatrixMut::new(scores, block.keys, columns);
        product(&mut into, false, self.scale, self.keys.rows(0..block.keys), queries, 1);
        if self.causal {
            for (hidden, scores) in scores.chunks_exact_mut(columns).skip(start).enumerate() {
                scores[..hidden].fill(f32::NEG_INFINITY);
            }
        }
        scores
    }
}

vectorized! {
    /// Replaces scores (keys, queries) by their exponentials over the largest of their column. Sets lse to the columns'
    /// logs of sums, and factors to what turns the exponentials into probabilities.
    fn softmax<S: Simd>(simd: S, scores: &mut [f32], lse: &mut [f32], factors: &mut [f32]) {
        let largest = lse;
        largest.fill(f32::NEG_INFINITY);
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
            *largest += sum.ln();
            *sum = 1.0 / *sum;
        }
    }
}
