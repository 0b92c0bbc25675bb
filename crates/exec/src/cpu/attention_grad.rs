//! Gradient of attention: the probabilities are computed anew from the log-sum-exp of their rows.
//!
//! With P the probabilities, M the dropout mask (1/(1 - rate) where kept, zero elsewhere, or one without dropout):
//! dV = (P∘M)ᵀ dY, dP = (dY Vᵀ)∘M, dS = P∘(dP - δ)·scale with δᵢ = Σ_c dYᵢ·Yᵢ, dQ = dS K, dK = dSᵀ Q.
//! Source: Dao et al. 2022, appendix B.2.

use super::attention::{BLOCK, Block, Head};
use super::dropout::{Mask, mark_columns};
use super::gemm::{Matrix, MatrixMut, product};
use super::math::{dot, exp, update};
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
    parallel::for_each_with_scratch(
        items.enumerate(),
        call.take_scratch(),
        call.threads,
        |(item, mut into), scratch| {
            let first = item / op.heads * time * channels + item % op.heads * head_size;
            let item = Item {
                head: Head::new(op, qkv, time, channels, item),
                y: Matrix::strided(&y[first..], time, head_size, channels),
                dy: Matrix::strided(&dy[first..], time, head_size, channels),
                lse: &lse[item * time..][..time],
                mask: mask.as_ref(),
            };
            let (scores, upstream) = scratch.split_at_mut(scratch.len() / 2);
            // A causal attention's last block sees all keys, so it sets what the others add to.
            for (number, block) in item.head.blocks().rev().enumerate() {
                item.backward(&block, number > 0, &mut into, scores, upstream);
            }
        },
    );
}

/// The places of dq, dk and dv of each head of a sample.
fn heads_of(
    dqkv: &mut [f32],
    time: usize,
    channels: usize,
    heads: usize,
) -> impl Iterator<Item = [MatrixMut<'_>; 3]> + Send {
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
    /// Sets a block's dq; sets dk and dv of the keys that it sees, or adds to them if `accumulate`.
    fn backward(
        &self,
        block: &Block,
        accumulate: bool,
        into: &mut [MatrixMut; 3],
        scores: &mut [f32],
        other: &mut [f32],
    ) {
        let [dq, dk, dv] = into;
        let (keys, columns) = (block.keys, block.queries.len());
        let (queries, dy) = (self.head.queries.rows(block.queries.clone()), self.dy.rows(block.queries.clone()));
        let (mut dk, mut dv) = (dk.rows(0..keys), dv.rows(0..keys));
        let scores = self.head.scores(block, scores);
        let other = &mut other[..keys * columns];

        probabilities(scores, &self.lse[block.queries.clone()]);
        if let Some(mask) = self.mask {
            mark_columns(scores, &self.head.columns(block), mask);
            keep_unmarked(other, scores, mask.scale);
            product(&mut dv, accumulate, 1.0, Matrix::new(other, keys, columns), dy, 1);
        } else {
            product(&mut dv, accumulate, 1.0, Matrix::new(scores, keys, columns), dy, 1);
        }

        let values = self.head.values.rows(0..keys);
        product(&mut MatrixMut::new(other, keys, columns), false, 1.0, values, dy.transposed(), 1);
        let mut deltas = [0.0; BLOCK];
        for (delta, query) in deltas.iter_mut().zip(block.queries.clone()) {
            *delta = inner_product(self.dy.row(query), self.y.row(query));
        }
        let mask_scale = self.mask.map(|mask| mask.scale);
        score_gradient(other, scores, &deltas[..columns], self.head.scale, mask_scale);
        let gradient = Matrix::new(other, keys, columns);
        let all_keys = self.head.keys.rows(0..keys);
        product(&mut dq.rows(block.queries.clone()), false, 1.0, gradient.transposed(), all_keys, 1);
        product(&mut dk, accumulate, 1.0, gradient, queries, 1);
    }
}

vectorized! {
    /// Turns scores (keys, queries) into probabilities, given the log of the sum of each column.
    fn probabilities<S: Simd>(simd: S, scores: &mut [f32], lse: &[f32]) {
        for scores in scores.chunks_exact_mut(lse.len()) {
            update!(simd, [scores, lse], exp(simd, simd.sub_f32s(scores, lse)));
        }
    }

    /// kept = P∘M, where the sign of P says what M drops.
    fn keep_unmarked<S: Simd>(simd: S, kept: &mut [f32], marked: &[f32], scale: f32) {
        for (kept, &p) in kept.iter_mut().zip(marked) {
            *kept = if p > 0.0 { p * scale } else { 0.0 };
        }
    }

    fn inner_product<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
        dot(simd, a, b)
    }

    /// Turns dY Vᵀ (keys, queries) into dS, given δ of each column. With a mask, the sign of P says what it drops.
    fn score_gradient<S: Simd>(
        simd: S,
        upstream: &mut [f32],
        probabilities: &[f32],
        deltas: &[f32],
        scale: f32,
        mask_scale: Option<f32>,
    ) {
        let rows = upstream.chunks_exact_mut(deltas.len()).zip(probabilities.chunks_exact(deltas.len()));
        for (upstream, probabilities) in rows {
            for ((upstream, &p), &delta) in upstream.iter_mut().zip(probabilities).zip(deltas) {
                let factor = match mask_scale {
                    None => 1.0,
                    Some(scale) if p > 0.0 => scale,
                    Some(_) => 0.0,
                };
                *upstream = scale * p.abs() * (factor * *upstream - delta);
            }
        }
    }
}
