//! Attention of a few new tokens to cached keys and values.

use super::math::{dot, exponentials, mul_add};
use super::matrix::{Matrix, MatrixMut};
use super::parallel;
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::ops;

pub(super) fn run(op: &ops::CachedAttention, mut call: Call) {
    let (samples, time) = (call.io.outputs[0].shape[0], call.io.outputs[0].shape[1]);
    let head_size = op.head_size(call.io.inputs[0]);
    let (width, kv_width, group) = (op.heads * head_size, op.kv_heads * head_size, op.heads / op.kv_heads);
    let [queries, new_keys, new_values] = [0, 1, 2].map(|which| {
        if op.packed {
            Matrix::strided(&call.f32(0)[which * width..], samples * time, width, 3 * width)
        } else {
            Matrix::new(call.f32(which), samples * time, if which == 0 { width } else { kv_width })
        }
    });
    let table = op.bias.map(|bias| (bias, call.f32(call.inputs.len() - 1)));
    let position = call.scalars.position as usize;
    let [y, keys, values] = call.take_outputs();
    let y = heads_of(y, [time, width], group * head_size);
    let keys = heads_of(keys, [op.capacity, kv_width], head_size);
    let values = heads_of(values, [op.capacity, kv_width], head_size);
    let heads = y.zip(keys).zip(values).enumerate();
    parallel::for_each_with_scratch(
        heads,
        call.take_scratch(),
        call.threads,
        |(item, ((mut y, mut keys), mut values)), scores| {
            let (sample, kv_head) = (item / op.kv_heads, item % op.kv_heads);
            for token in 0..time {
                let (fed, seen) = (sample * time + token, position + token + 1);
                let new = kv_head * head_size..(kv_head + 1) * head_size;
                keys.row(seen - 1).copy_from_slice(&new_keys.row(fed)[new.clone()]);
                values.row(seen - 1).copy_from_slice(&new_values.row(fed)[new]);
                for (of_group, y) in y.row(token).chunks_exact_mut(head_size).enumerate() {
                    let head = kv_head * group + of_group;
                    let q = &queries.row(fed)[head * head_size..][..head_size];
                    let scores = &mut scores[..seen];
                    match table {
                        None => scores.fill(0.0),
                        Some((bias, table)) => {
                            let of = |key| table[bias.bucket(seen - 1, key) * op.heads + head];
                            scores.iter_mut().enumerate().for_each(|(key, score)| *score = of(key));
                        }
                    }
                    attend(y, q, &mut keys, &mut values, scores, op.scale);
                }
            }
        },
    );
}

/// Blocks of columns of each sample's matrix.
fn heads_of(of: &mut [f32], [rows, columns]: [usize; 2], width: usize) -> impl Iterator<Item = MatrixMut<'_>> + Send {
    let samples = of.chunks_exact_mut(rows * columns);
    samples.flat_map(move |of| MatrixMut::new(of, rows, columns).column_blocks(width))
}

vectorized! {
    /// y = softmax(scale q · keys + scores) · values over as many rows as there are scores.
    fn attend<S: Simd>(
        simd: S,
        y: &mut [f32],
        q: &[f32],
        keys: &mut MatrixMut,
        values: &mut MatrixMut,
        scores: &mut [f32],
        scale: f32,
    ) {
        for (row, score) in scores.iter_mut().enumerate() {
            *score += scale * dot(simd, q, keys.row(row));
        }
        let [_, sum] = exponentials(simd, scores);
        let factor = 1.0 / sum;
        y.fill(0.0);
        for (row, &weight) in scores.iter().enumerate() {
            for (y, &value) in y.iter_mut().zip(&*values.row(row)) {
                *y = mul_add::<S>(weight, value, *y);
            }
        }
        for y in y {
            *y *= factor;
        }
    }
}
