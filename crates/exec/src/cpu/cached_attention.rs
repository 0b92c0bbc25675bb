//! Attention of a few new tokens to cached keys and values.

use super::CpuKernel;
use super::half::Float;
use super::math::{dot, exponentials, mul_add};
use super::matrix::{Matrix, MatrixMut};
use super::parallel;
use super::soft_cap::forward_in_place;
use super::tiles::{in_precision, in_single, operand, results, widened};
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::{DType, ops};

impl CpuKernel for ops::CachedAttention {
    fn run(&self, call: Call) {
        in_precision!(call, run(self, call));
    }
}

fn run<E: Float>(op: &ops::CachedAttention, mut call: Call) {
    let (samples, time) = (call.io.outputs[0].shape[0], call.io.outputs[0].shape[1]);
    let head_size = op.head_size(call.io.inputs[0]);
    let (width, kv_width, group) = (op.heads * head_size, op.kv_heads * head_size, op.heads / op.kv_heads);
    let [queries, new_keys, new_values] = [0, 1, 2].map(|which| {
        if op.packed {
            Matrix::strided(&operand::<E>(&call, 0)[which * width..], samples * time, width, 3 * width)
        } else {
            Matrix::new(operand::<E>(&call, which), samples * time, if which == 0 { width } else { kv_width })
        }
    });
    let table = op.bias.zip(op.table()).map(|(bias, table)| (bias, operand::<E>(&call, table)));
    let sinks = op.sinks().map(|sinks| operand::<E>(&call, sinks));
    let position = call.scalars.position as usize;
    let [y, keys, values] = results::<E, 3>(&mut call);
    let y = heads_of(y, [time, width], group * head_size);
    let keys = heads_of(keys, [op.capacity, kv_width], head_size);
    let values = heads_of(values, [op.capacity, kv_width], head_size);
    let heads = y.zip(keys).zip(values).enumerate();
    parallel::for_each_with_scratch(
        heads,
        call.take_scratch(),
        call.threads,
        |(item, ((mut y, mut keys), mut values)), scratch| {
            let tiles = if E::DTYPE == DType::F32 { 0 } else { head_size };
            let (query_tile, scratch) = scratch.split_at_mut(tiles);
            let (tile, scratch) = scratch.split_at_mut(tiles);
            let (result_tile, scores) = scratch.split_at_mut(tiles);
            let (sample, kv_head) = (item / op.kv_heads, item % op.kv_heads);
            for token in 0..time {
                let (fed, seen) = (sample * time + token, position + token + 1);
                let new = kv_head * head_size..(kv_head + 1) * head_size;
                keys.row(seen - 1).copy_from_slice(&new_keys.row(fed)[new.clone()]);
                values.row(seen - 1).copy_from_slice(&new_values.row(fed)[new]);
                for (of_group, y) in y.row(token).chunks_exact_mut(head_size).enumerate() {
                    let head = kv_head * group + of_group;
                    let q = widened(&queries.row(fed)[head * head_size..][..head_size], query_tile);
                    let first = op.window.map_or(0, |window| seen.saturating_sub(window));
                    let scores = &mut scores[..seen - first];
                    match table {
                        None => scores.fill(0.0),
                        Some((bias, table)) => {
                            for (key, score) in (first..).zip(scores.iter_mut()) {
                                let at = bias.bucket(seen - 1, key) * op.heads + head;
                                E::widen(&table[at..=at], std::slice::from_mut(score));
                            }
                        }
                    }
                    for (row, score) in (first..).zip(scores.iter_mut()) {
                        *score += op.scale * inner_product(q, widened(keys.row(row), tile));
                    }
                    if let Some(cap) = op.cap {
                        forward_in_place(scores, cap);
                    }
                    let [largest, mut sum] = exponentials_of(scores);
                    if let Some(sinks) = sinks {
                        let mut sink = 0.0;
                        E::widen(&sinks[head..=head], std::slice::from_mut(&mut sink));
                        sum += (sink - largest).exp();
                    }
                    in_single(&mut MatrixMut::new(y, 1, head_size), result_tile, |y| {
                        let y = y.row(0);
                        y.fill(0.0);
                        for (row, &weight) in (first..).zip(scores.iter()) {
                            add_weighted(y, weight, widened(values.row(row), tile));
                        }
                        let factor = 1.0 / sum;
                        y.iter_mut().for_each(|y| *y *= factor);
                    });
                }
            }
        },
    );
}

/// Blocks of columns of each sample's matrix.
fn heads_of<E: Float>(
    of: &mut [E],
    [rows, columns]: [usize; 2],
    width: usize,
) -> impl Iterator<Item = MatrixMut<'_, E>> + Send {
    let samples = of.chunks_exact_mut(rows * columns);
    samples.flat_map(move |of| MatrixMut::new(of, rows, columns).column_blocks(width))
}

vectorized! {
    fn inner_product<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
        dot(simd, a, b)
    }

    /// Replaces scores by their exponentials relative to the largest. Returns the largest and the sum.
    fn exponentials_of<S: Simd>(simd: S, scores: &mut [f32]) -> [f32; 2] {
        exponentials(simd, scores)
    }

    /// y += weight · values.
    fn add_weighted<S: Simd>(simd: S, y: &mut [f32], weight: f32, values: &[f32]) {
        for (y, &value) in y.iter_mut().zip(values) {
            *y = mul_add::<S>(weight, value, *y);
        }
    }
}
