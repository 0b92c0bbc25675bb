//! Gradient of attention: the probabilities are recomputed from the log-sum-exp of their rows.
//!
//! With P the probabilities, M the dropout mask (1/(1 - rate) where kept, zero elsewhere, or one without dropout):
//! dV = (P∘M)ᵀ dY, dP = (dY Vᵀ)∘M, dS = P∘(dP - δ)·scale with δᵢ = Σ_c dYᵢ·Yᵢ, dQ = dS K, dK = dSᵀ Q.
//! With a cap, dS is also multiplied by 1 - (S/cap)². The gradient of a head's sink is -Σ exp(sink - lse)·δ.
//! Source: Dao et al. 2022, appendix B.2.

use super::CpuKernel;
use super::attention::{BLOCK, Head, Operands, add};
use super::attention_block::Block;
use super::attention_products::{Operand, Products};
use super::dropout::{Mask, mark_columns};
use super::half::Float;
use super::math::{dot, exp, update};
use super::matrix::{Matrix, MatrixMut};
use super::parallel;
use super::soft_cap::slope;
use super::tiles::{in_precision, in_single, operand, widened};
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::{DType, ops};

impl CpuKernel for ops::AttentionGrad {
    fn run(&self, call: Call) {
        in_precision!(call, run(self, call));
    }
}

fn run<E: Float>(grad: &ops::AttentionGrad, mut call: Call) {
    let (accumulate, op) = (grad.accumulate, &grad.forward);
    let operands = Operands::<E>::new(op, &call, 1);
    let e = operands.extents;
    let (dy, y, lse) = (operand::<E>(&call, 0), operand::<E>(&call, op.operands() + 1), call.f32(op.operands() + 2));
    let products = Products::of::<E>();
    let length = op.rows.min(e.queries);
    let mask = op.dropout.map(|key| Mask::new(key, call.scalars));
    let group = op.heads / op.kv_heads;
    let buckets = op.bias.map_or(0, |bias| bias.buckets);
    let mut outputs = call.take_byte_outputs().collect::<Vec<_>>();
    let mut learned =
        |is_wanted: bool| if is_wanted { outputs.pop().map(bytemuck::cast_slice_mut::<u8, f32>) } else { None };
    let (dsinks, dtable) = (learned(grad.sinks), learned(grad.table));
    let outputs = outputs.into_iter().map(bytemuck::cast_slice_mut).collect::<Vec<_>>();
    let (partials, scratch) = call.take_scratch().split_at_mut(op.partial_tables(&e, 1));
    let partials = &mut partials[..e.samples * op.heads * buckets];
    let mut partial = partials.chunks_exact_mut((group * buckets).max(1));
    let (partial_sinks, scratch) = scratch.split_at_mut(op.partial_sinks(&e));
    let mut of_sinks = partial_sinks.chunks_exact_mut(group);
    let items = gradients(outputs, &operands).map(|into| (into, partial.next(), of_sinks.next())).enumerate();
    parallel::for_each_with_scratch(items, scratch, call.threads, |(item, into), scratch| {
        let (mut into, mut partial, mut of_sinks) = into;
        let (sample, kv_head) = (item / op.kv_heads, item % op.kv_heads);
        let mut scratch = scratch;
        let first_head = Head::new(&operands, sample, kv_head * group);
        let keys = products.left(first_head.keys, &mut scratch);
        let added_keys = products.right(first_head.keys, &mut scratch);
        let values = products.left(first_head.values, &mut scratch);
        let panels = 2 * (operands.panel_words(length, e.head_size) + operands.panel_words(e.head_size, length));
        let (panels, scratch) = scratch.split_at_mut(panels);
        let (panel, scratch) = scratch.split_at_mut(operands.panel_words(1, e.keys.max(length)));
        let (dk, scratch) = scratch.split_at_mut(operands.tile(e.keys));
        let (dv, scratch) = scratch.split_at_mut(operands.tile(e.keys));
        let (dq, scratch) = scratch.split_at_mut(operands.tile(length));
        let (biases, scratch) = scratch.split_at_mut(2 * operands.distances());
        let (biases, distances) = biases.split_at_mut(operands.distances());
        let (scores, scratch) = scratch.split_at_mut(scratch.len() / grad.score_buffers());
        let (upstream, slopes) = scratch.split_at_mut(scores.len());
        let room = &mut Room { scores, upstream, slopes, panels, panel, dq };
        in_single(&mut into.keys, dk, |dk| {
            in_single(&mut into.values, dv, |dv| {
                // The block that attends to all keys overwrites, and the others add. In a causal attention without
                // segments and window this is the last block.
                let mut present = op.segmented || op.window.is_some();
                if present {
                    dk.fill(0.0);
                    dv.fill(0.0);
                }
                for (of_group, mut dq) in into.queries.column_blocks(e.head_size).enumerate() {
                    let index = kv_head * group + of_group;
                    let first = sample * e.queries * op.heads * e.head_size + index * e.head_size;
                    let stride = op.heads * e.head_size;
                    let head = Head::new(&operands, sample, index);
                    head.biases(biases);
                    distances.fill(0.0);
                    let item = Item {
                        y: Matrix::strided(&y[first..], e.queries, e.head_size, stride),
                        dy: Matrix::strided(&dy[first..], e.queries, e.head_size, stride),
                        lse: &lse[(sample * op.heads + index) * e.queries..][..e.queries],
                        mask: mask.as_ref(),
                        scale: op.scale,
                        cap: op.cap,
                        biases,
                        products: &products,
                        keys,
                        added_keys,
                        values,
                        head,
                    };
                    for block in item.head.blocks().rev() {
                        let of_keys = [dk.rows(block.keys.clone()), dv.rows(block.keys.clone())];
                        item.backward(&block, present, of_keys, &mut dq.rows(block.queries.clone()), distances, room);
                        present = true;
                    }
                    if let (Some(sink), Some(of_sinks)) = (item.head.sink(), &mut of_sinks) {
                        of_sinks[of_group] = item.sink_gradient(sink);
                    }
                    if let (Some(bias), Some(partial)) = (&op.bias, &mut partial) {
                        let partial = &mut partial[of_group * buckets..][..buckets];
                        partial.fill(0.0);
                        for (place, value) in distances.iter().enumerate() {
                            partial[item.head.bucket(bias, place)] += value / op.scale;
                        }
                    }
                }
            });
        });
    });
    if let Some(dtable) = dtable {
        for (place, into) in dtable.iter_mut().enumerate() {
            let (bucket, head) = (place / op.heads, place % op.heads);
            let of_sample = |sample: usize| partials[(sample * op.heads + head) * buckets + bucket];
            *into = (0..e.samples).map(of_sample).fold(if accumulate { *into } else { 0.0 }, |sum, x| sum + x);
        }
    }
    for (head, into) in dsinks.into_iter().flatten().enumerate() {
        let of_sample = |sample: usize| partial_sinks[sample * op.heads + head];
        *into = (0..e.samples).map(of_sample).fold(if accumulate { *into } else { 0.0 }, |sum, x| sum + x);
    }
}

/// The memory of the gradients of one key head and of all its query heads.
struct Gradients<'a, E> {
    queries: MatrixMut<'a, E>,
    keys: MatrixMut<'a, E>,
    values: MatrixMut<'a, E>,
}

/// A worker's memory: two blocks of scores, one of slopes of the cap if there is one, and in half precision a block's
/// queries and dY in panels, a panel of scores, and dQ.
struct Room<'a> {
    scores: &'a mut [f32],
    upstream: &'a mut [f32],
    slopes: &'a mut [f32],
    panels: &'a mut [f32],
    panel: &'a mut [f32],
    dq: &'a mut [f32],
}

/// The memory of the gradients of each key head of each sample.
fn gradients<'a, E: Float>(
    outputs: Vec<&'a mut [E]>,
    operands: &Operands<E>,
) -> impl Iterator<Item = Gradients<'a, E>> + Send + use<'a, E> {
    let (op, e) = (operands.op, operands.extents);
    let (width, kv_width) = (op.heads * e.head_size, op.kv_heads * e.head_size);
    let group_width = width / op.kv_heads;
    let mut samples = Vec::with_capacity(e.samples);
    match <[_; 3]>::try_from(outputs) {
        Ok([dq, dk, dv]) => {
            let queries = dq.chunks_exact_mut(e.queries * width).map(|x| MatrixMut::new(x, e.queries, width));
            let keys = dk.chunks_exact_mut(e.keys * kv_width).map(|x| MatrixMut::new(x, e.keys, kv_width));
            let values = dv.chunks_exact_mut(e.keys * kv_width).map(|x| MatrixMut::new(x, e.keys, kv_width));
            samples.extend(queries.zip(keys).zip(values).map(|((q, k), v)| [q, k, v]));
        }
        Err(packed) => {
            let of_all = packed.into_iter().flat_map(|x| x.chunks_exact_mut(e.queries * 3 * width));
            samples.extend(of_all.map(|dqkv| {
                let mut blocks = MatrixMut::new(dqkv, e.queries, 3 * width).column_blocks(width);
                [(); 3].map(|()| blocks.next().expect("three blocks"))
            }));
        }
    }
    samples.into_iter().flat_map(move |[dq, dk, dv]| {
        let keys = dk.column_blocks(e.head_size).zip(dv.column_blocks(e.head_size));
        dq.column_blocks(group_width).zip(keys).map(|(queries, (keys, values))| Gradients { queries, keys, values })
    })
}

/// One head of one sample, with the results of the forward pass and the upstream gradient.
struct Item<'a, E> {
    head: Head<'a, E>,
    products: &'a Products,
    /// Operands of products with queries, and of sums.
    keys: Operand<'a>,
    added_keys: Operand<'a>,
    values: Operand<'a>,
    y: Matrix<'a, E>,
    dy: Matrix<'a, E>,
    lse: &'a [f32],
    mask: Option<&'a Mask>,
    scale: f32,
    cap: Option<f32>,
    biases: &'a [f32],
}

impl<E: Float> Item<'_, E> {
    /// δ of a query.
    fn delta(&self, query: usize) -> f32 {
        inner_product_of(self.dy.row(query), self.y.row(query))
    }

    /// The gradient of the head's sink.
    fn sink_gradient(&self, sink: f32) -> f32 {
        -self.lse.iter().enumerate().map(|(query, lse)| (sink - lse).exp() * self.delta(query)).sum::<f32>()
    }

    /// Sets a block's dq. Sets dk and dv of the keys that it attends to, or adds to them if `accumulate`. Adds the
    /// scores' gradients to the gradients by distance, if there is a bias.
    fn backward(
        &self,
        block: &Block,
        accumulate: bool,
        [mut dk, mut dv]: [MatrixMut; 2],
        dq: &mut MatrixMut<E>,
        distances: &mut [f32],
        room: &mut Room,
    ) {
        let Room { scores, upstream, slopes, panels, panel, dq: tile } = room;
        let (products, keys, columns) = (self.products, block.keys.len(), block.queries.len());
        if keys == 0 {
            return in_single(dq, tile, |dq| dq.fill(0.0));
        }
        let rows = || block.queries.clone();
        let (queries, dy) = (self.head.queries.rows(rows()), self.dy.rows(rows()));
        let room = &mut &mut **panels;
        let of_queries = products.right(queries.transposed(), room);
        let of_dy = products.right(dy.transposed(), room);
        let (added_queries, added_dy) = (products.right(queries, room), products.right(dy, room));
        let scores = self.head.scores(products, block, of_queries, self.keys, self.biases, scores);
        let other = &mut upstream[..keys * columns];
        if let Some(cap) = self.cap {
            slopes_of_cap(&mut slopes[..keys * columns], scores, cap);
        }

        probabilities(scores, &self.lse[rows()]);
        if let Some(mask) = self.mask {
            mark_columns(scores, &self.head.columns(block), mask);
            keep_unmarked(other, scores, mask.scale);
            products.sum_over_queries(block, &mut dv, accumulate, other, added_dy, panel);
        } else {
            products.sum_over_queries(block, &mut dv, accumulate, scores, added_dy, panel);
        }

        products.key_by_query(block, other, 1.0, self.values, of_dy);
        let mask_scale = self.mask.map(|mask| mask.scale);
        let mut deltas = [0.0; BLOCK];
        let deltas = &mut deltas[..columns];
        for (delta, query) in deltas.iter_mut().zip(rows()) {
            *delta = self.delta(query);
        }
        score_gradient(other, scores, deltas, self.scale, mask_scale);
        if self.cap.is_some() {
            multiply(other, &slopes[..keys * columns]);
        }
        if !distances.is_empty() {
            for (gradient, key) in other.chunks_exact(columns).zip(block.keys.clone()) {
                add(&mut distances[self.head.distances(block, key)], gradient);
            }
        }
        in_single(dq, tile, |dq| products.sum_over_keys(block, dq, other, self.added_keys, panel));
        products.sum_over_queries(block, &mut dk, accumulate, other, added_queries, panel);
    }
}

/// Channels per widening.
const WIDENED: usize = 64;

/// Σ a·b in any precision.
fn inner_product_of<E: Float>(a: &[E], b: &[E]) -> f32 {
    if E::DTYPE == DType::F32 {
        return inner_product(bytemuck::cast_slice(a), bytemuck::cast_slice(b));
    }
    let parts = a.chunks(WIDENED).zip(b.chunks(WIDENED));
    parts.map(|(a, b)| inner_product(widened(a, &mut [0.0; WIDENED]), widened(b, &mut [0.0; WIDENED]))).sum()
}

vectorized! {
    /// Turns scores (keys, queries) into probabilities, given the log of the sum of each column.
    fn probabilities<S: Simd>(simd: S, scores: &mut [f32], lse: &[f32]) {
        for scores in scores.chunks_exact_mut(lse.len()) {
            update!(simd, [scores, lse], exp(simd, simd.sub_f32s(scores, lse)));
        }
    }

    /// kept = P∘M, where a negative sign of P marks the elements that M drops.
    fn keep_unmarked<S: Simd>(simd: S, kept: &mut [f32], marked: &[f32], scale: f32) {
        for (kept, &p) in kept.iter_mut().zip(marked) {
            *kept = if p > 0.0 { p * scale } else { 0.0 };
        }
    }

    /// The slope of the cap at each capped score.
    fn slopes_of_cap<S: Simd>(simd: S, slopes: &mut [f32], scores: &[f32], cap: f32) {
        update!(simd, [slopes, scores], slope(simd, scores, cap));
    }

    /// x *= y.
    fn multiply<S: Simd>(simd: S, x: &mut [f32], y: &[f32]) {
        update!(simd, [x, y], simd.mul_f32s(x, y));
    }

    fn inner_product<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
        dot(simd, a, b)
    }

    /// Turns dY Vᵀ (keys, queries) into dS, given δ of each column. With a mask, a negative sign of P marks the dropped
    /// elements.
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
