//! Reference of `ops/cached_attention.rs`.

use super::{Real, RefCall};
use graph::ops::CachedAttention;

pub(super) fn cached_attention<F: Real>(op: &CachedAttention, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
    let (qkv, shape) = (call.f(0), &call.io.inputs[0].shape);
    let (t, c, start) = (shape[1], shape[2] / 3, call.scalars.position as usize);
    let d = c / op.heads;
    for row in 0..t {
        let fed = &qkv[row * 3 * c..(row + 1) * 3 * c];
        outputs[1][(start + row) * c..(start + row + 1) * c].copy_from_slice(&fed[c..2 * c]);
        outputs[2][(start + row) * c..(start + row + 1) * c].copy_from_slice(&fed[2 * c..]);
    }
    for row in 0..t {
        for h in 0..op.heads {
            let query = &qkv[row * 3 * c + h * d..row * 3 * c + (h + 1) * d];
            let cached = |cache: &[F], j: usize, k: usize| cache[j * c + h * d + k].to_f64();
            let weights = (0..=start + row)
                .map(|j| (0..d).map(|k| query[k].to_f64() * cached(&outputs[1], j, k)).sum::<f64>() / (d as f64).sqrt())
                .map(f64::exp)
                .collect::<Vec<_>>();
            let total = weights.iter().sum::<f64>();
            for k in 0..d {
                let mixed = weights.iter().enumerate().map(|(j, w)| w * cached(&outputs[2], j, k)).sum::<f64>();
                outputs[0][row * c + h * d + k] = F::from_f64(mixed / total);
            }
        }
    }
}
