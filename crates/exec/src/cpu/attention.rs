//! Causal or full self-attention: each head of each sample by itself, some rows of scores at a time.
//!
//!            columns →
//!     rows  ┌───┐            of a causal attention's scores only the blocks on and under the diagonal are computed;
//!       ↓   │ ╲ │            in the diagonal's blocks, what lies above it is set to zero
//!           ├───┼───┐
//!           │   │ ╲ │
//!           └───┴───┘
//!
//! `attention_grad.rs` walks the same blocks backwards.

use super::dropout::{Mask, drop_out};
use super::gemm::{Matrix, MatrixMut, product};
use super::math::exponentials;
use super::parallel;
use super::vectorize::vectorized;
use crate::call::Call;
use graph::ops;
use std::ops::Range;

pub(super) fn run(op: &ops::Attention, mut call: Call) {
    let qkv = call.f32(0);
    let (time, channels) = (call.io.outputs[0].shape[1], call.io.outputs[0].shape[2]);
    let mask = op.dropout.map(|key| Mask::new(key, call.scalars));
    let [y, lse] = call.take_outputs();
    let head_size = channels / op.heads;
    let of_sample = |y| MatrixMut::new(y, time, channels).column_blocks(head_size);
    let items = y.chunks_exact_mut(time * channels).flat_map(of_sample).zip(lse.chunks_exact_mut(time)).enumerate();
    parallel::for_each_with_scratch(items, call.take_scratch(), call.threads, |(item, (mut y, lse)), scratch| {
        let head = Head::new(op, qkv, time, channels, item);
        for block in head.blocks() {
            let scores = head.scores(&block, scratch);
            for (row, scores) in block.rows.clone().zip(scores.chunks_exact_mut(block.columns)) {
                lse[row] = softmax(scores, head.seen(row));
                if let Some(mask) = &mask {
                    drop_out(&mut scores[..head.seen(row)], mask, head.sample, head.element(row));
                }
            }
            let probabilities = Matrix::new(scores, block.rows.len(), block.columns);
            product(&mut y.rows(block.rows), false, 1.0, probabilities, head.values.rows(0..block.columns), 1);
        }
    });
}

/// One head of one sample.
pub(super) struct Head<'a> {
    pub(super) sample: usize,
    index: usize,
    causal: bool,
    block_rows: usize,
    /// (T, D) each.
    pub(super) queries: Matrix<'a>,
    pub(super) keys: Matrix<'a>,
    pub(super) values: Matrix<'a>,
    /// 1/√D, which scores are multiplied by.
    pub(super) scale: f32,
    time: usize,
}

/// Rows of scores that are held together, and how many columns the last of them sees.
pub(super) struct Block {
    pub(super) rows: Range<usize>,
    pub(super) columns: usize,
}

impl<'a> Head<'a> {
    /// Head `item`, counted over all samples.
    pub(super) fn new(op: &ops::Attention, qkv: &'a [f32], time: usize, channels: usize, item: usize) -> Self {
        let (sample, index) = (item / op.heads, item % op.heads);
        let head_size = channels / op.heads;
        let qkv = &qkv[sample * time * 3 * channels..][..time * 3 * channels];
        let [queries, keys, values] = [0, 1, 2].map(|which| {
            Matrix::strided(&qkv[which * channels + index * head_size..], time, head_size, 3 * channels)
        });
        let scale = 1.0 / (head_size as f32).sqrt();
        Self { sample, index, causal: op.causal, block_rows: op.rows, queries, keys, values, scale, time }
    }

    /// The blocks, from the first rows to the last.
    pub(super) fn blocks(&self) -> impl DoubleEndedIterator<Item = Block> + use<> {
        let (time, causal, block_rows) = (self.time, self.causal, self.block_rows);
        (0..time.div_ceil(block_rows)).map(move |block| {
            let rows = block * block_rows..time.min((block + 1) * block_rows);
            let columns = if causal { rows.end } else { time };
            Block { rows, columns }
        })
    }

    /// Columns that a row sees.
    pub(super) fn seen(&self, row: usize) -> usize {
        if self.causal { row + 1 } else { self.time }
    }

    /// Number of a row's first probability among all of the sample, by which dropout knows it.
    pub(super) fn element(&self, row: usize) -> u64 {
        ((self.index * self.time + row) * self.time) as u64
    }

    /// The scores of a block, those that the mask hides too, at the beginning of `scratch`.
    pub(super) fn scores<'s>(&self, block: &Block, scratch: &'s mut [f32]) -> &'s mut [f32] {
        let scores = &mut scratch[..block.rows.len() * block.columns];
        let mut into = MatrixMut::new(scores, block.rows.len(), block.columns);
        let keys = self.keys.rows(0..block.columns).transposed();
        product(&mut into, false, self.scale, self.queries.rows(block.rows.clone()), keys, 1);
        scores
    }
}

vectorized! {
    /// Softmax of the first `seen` scores of a row; the others become zero. Returns the log of the sum.
    fn softmax<const FMA: bool>(scores: &mut [f32], seen: usize) -> f32 {
        let (scores, hidden) = scores.split_at_mut(seen);
        hidden.fill(0.0);
        let [largest, sum] = exponentials::<FMA>(scores);
        let factor = 1.0 / sum;
        for score in scores {
            *score *= factor;
        }
        largest + sum.ln()
    }
}
