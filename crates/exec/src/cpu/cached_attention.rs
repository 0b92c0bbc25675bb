//! Attention of a few new tokens to cached keys and values.

use super::gemm::MatrixMut;
use super::math::{dot, exponentials, mul_add};
use super::parallel;
use super::vectorize::vectorized;
use crate::call::Call;
use graph::ops;

pub(super) fn run(op: &ops::CachedAttention, mut call: Call) {
    let qkv = call.f32(0);
    let (time, channels) = (call.io.outputs[0].shape[1], call.io.outputs[0].shape[2]);
    let head_size = channels / op.heads;
    let position = call.scalars.position as usize;
    let [y, keys, values] = call.take_outputs();
    let y = MatrixMut::new(y, time, channels).column_blocks(head_size);
    let keys = MatrixMut::new(keys, op.capacity, channels).column_blocks(head_size);
    let values = MatrixMut::new(values, op.capacity, channels).column_blocks(head_size);
    let heads = y.zip(keys).zip(values).enumerate();
    parallel::for_each_with_scratch(
        heads,
        call.take_scratch(),
        call.threads,
        |(head, ((mut y, mut keys), mut values)), scores| {
            for (token, qkv) in qkv.chunks_exact(3 * channels).enumerate() {
                let part = |which: usize| &qkv[which * channels + head * head_size..][..head_size];
                let seen = position + token + 1;
                keys.row(seen - 1).copy_from_slice(part(1));
                values.row(seen - 1).copy_from_slice(part(2));
                attend(y.row(token), part(0), &mut keys, &mut values, &mut scores[..seen]);
            }
        },
    );
}

vectorized! {
    /// y = softmax(q · keys) · values over as many rows as there are scores.
    fn attend<S: Simd>(
        simd: S,
        y: &mut [f32],
        q: &[f32],
        keys: &mut MatrixMut,
        values: &mut MatrixMut,
        scores: &mut [f32],
    ) {
        let scale = 1.0 / (q.len() as f32).sqrt();
        for (row, score) in scores.iter_mut().enumerate() {
            *score = scale * dot(simd, q, keys.row(row));
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
