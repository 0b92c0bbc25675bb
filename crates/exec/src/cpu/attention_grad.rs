//! Gradient of attention: the probabilities are computed anew from the log-sum-exp of their rows.
//!
//! With P the probabilities, M the dropout mask (1/(1 - rate) where kept, zero elsewhere, or one without dropout):
//! dV = (P∘M)ᵀ dY, dP = (dY Vᵀ)∘M, dS = P∘(dP - δ)·scale with δᵢ = Σ_c dYᵢ·Yᵢ, dQ = dS K, dK = dSᵀ Q.
//! Source: Dao et al. 2022, appendix B.2.

use super::attention::{Block, Head};
use super::dropout::{Mask, mark_dropped};
use super::gemm::{Matrix, MatrixMut, product};
use super::math::{dot, exp};
use super::parallel;
use super::vectorize::vectorized;
use crate::call::Call;
use graph::ops;

pub(super) fn run(op: &ops::AttentionGrad, mut call: Call) {
    let op = &op.forward;
    let (dy, qkv, y, lse) = (call.f32(0), call.f32(1), call.f32(2), call.f32(3));
    let (time, channels) = (call.io.inputs[0].shape[1], call.io.inputs[0].shape[2]);
    let mask = op.dropout.map(|key| Mask::new(key, call.scalars));
    let [dqkv] = call.take_outputs();
    let head_size = channels / op.heads;
    let items = dqkv.chunks_exact_mut(time * 3 * channels).flat_map(|dqkv| heads_of(dqkv, time, channels, op.heads));
    parallel::for_each_with_scratch(items.enumerate(), call.take_scratch(), call.threads, |(item, mut into), scratch| {
        let first = item / op.heads * time * channels + item % op.heads * head_size;
        let item = Item {
            head: Head::new(op, qkv, time, channels, item),
            y: Matrix::strided(&y[first..], time, head_size, channels),
            dy: Matrix::strided(&dy[first..], time, head_size, channels),
            lse: &lse[item * time..][..time],
            mask: mask.as_ref(),
        };
        let (scores, upstream) = scratch.split_at_mut(scratch.len() / 2);
        // A causal attention's last block sees all columns, so it sets what the others add to.
        for (number, block) in item.head.blocks().rev().enumerate() {
            item.backward(&block, number > 0, &mut into, scores, upstream);
        }
    });
}

/// The places of dq, dk and dv of each head of a sample.
fn heads_of(dqkv: &mut [f32], time: usize, channels: usize, heads: usize) -> impl Iterator<Item = [MatrixMut<'_>; 3]> + Send {
    let mut blocks = MatrixMut::new(dqkv, time, 3 * channels).column_blocks(channels);
    let mut next = || blocks.next().expect("three blocks").column_blocks(channels / heads);
    let (dq, dk, dv) = (next(), next(), next());
    dq.zip(dk).zip(dv).map(|((dq, dk), dv)| [dq, dk, dv])
}

/// One head of one sample, with what the forward pass left and what comes from above.
struct Item<'a> {
    head: Head<'a>,
    y: Matrix<'a>,
    dy: Matrix<'a>,
    lse: &'a [f32],
    mask: Option<&'a Mask>,
}

impl Item<'_> {
    /// Sets a block's dq; sets dk and dv of the columns that it sees, or adds to them if `accumulate`.
    fn backward(&self, block: &Block, accumulate: bool, into: &mut [MatrixMut; 3], scores: &mut [f32], other: &mut [f32]) {
        let [dq, dk, dv] = into;
        let (rows, columns) = (block.rows.len(), block.columns);
        let (queries, dy) = (self.head.queries.rows(block.rows.clone()), self.dy.rows(block.rows.clone()));
        let scores = self.head.scores(block, scores);
        let other = &mut other[..rows * columns];

        for (row, scores) in block.rows.clone().zip(scores.chunks_exact_mut(columns)) {
            probabilities(scores, self.head.seen(row), self.lse[row]);
        }
        let mut dv = dv.rows(0..columns);
        match self.mask {
            None => product(&mut dv, accumulate, 1.0, Matrix::new(scores, rows, columns).transposed(), dy, 1),
            Some(mask) => {
                let lines = scores.chunks_exact_mut(columns).zip(other.chunks_exact_mut(columns));
                for (row, (scores, other)) in block.rows.clone().zip(lines) {
                    mark_dropped(&mut scores[..self.head.seen(row)], mask, self.head.sample, self.head.element(row));
                    keep_unmarked(other, scores, mask.scale);
                }
                product(&mut dv, accumulate, 1.0, Matrix::new(other, rows, columns).transposed(), dy, 1);
            }
        }

        let values = self.head.values.rows(0..columns).transposed();
        product(&mut MatrixMut::new(other, rows, columns), false, 1.0, dy, values, 1);
        let lines = scores.chunks_exact(columns).zip(other.chunks_exact_mut(columns));
        for (row, (probabilities, upstream)) in block.rows.clone().zip(lines) {
            let delta = inner_product(self.dy.row(row), self.y.row(row));
            match self.mask {
                None => score_gradient(upstream, probabilities, delta, self.head.scale),
                Some(mask) => score_gradient_of_marked(upstream, probabilities, delta, self.head.scale, mask.scale),
            }
        }
        let gradient = Matrix::new(other, rows, columns);
        product(&mut dq.rows(block.rows.clone()), false, 1.0, gradient, self.head.keys.rows(0..columns), 1);
        product(&mut dk.rows(0..columns), accumulate, 1.0, gradient.transposed(), queries, 1);
    }
}

vectorized! {
    /// Turns the first `seen` scores of a row into probabilities; the others become zero.
    fn probabilities<const FMA: bool>(scores: &mut [f32], seen: usize, log_sum: f32) {
        let (scores, hidden) = scores.split_at_mut(seen);
        hidden.fill(0.0);
        for score in scores {
            *score = exp::<FMA>(*score - log_sum);
        }
    }

    /// kept = P∘M, where the sign of P says what M drops.
    fn keep_unmarked<const FMA: bool>(kept: &mut [f32], marked: &[f32], scale: f32) {
        for (kept, &p) in kept.iter_mut().zip(marked) {
            *kept = if p > 0.0 { p * scale } else { 0.0 };
        }
    }

    fn inner_product<const FMA: bool>(a: &[f32], b: &[f32]) -> f32 {
        dot::<FMA>(a, b)
    }

    /// Turns a row of dP into one of dS.
    fn score_gradient<const FMA: bool>(upstream: &mut [f32], probabilities: &[f32], delta: f32, scale: f32) {
        for (upstream, &p) in upstream.iter_mut().zip(probabilities) {
            *upstream = scale * p * (*upstream - delta);
        }
    }

    /// Turns a row of dP, before the mask, into one of dS, where the sign of P says what the mask drops.
    fn score_gradient_of_marked<const FMA: bool>(
        upstream: &mut [f32],
        marked: &[f32],
        delta: f32,
        scale: f32,
        mask_scale: f32,
    ) {
        for (upstream, &p) in upstream.iter_mut().zip(marked) {
            let factor = if p > 0.0 { mask_scale } else { 0.0 };
            *upstream = scale * p.abs() * (factor * *upstream - delta);
        }
    }
}
