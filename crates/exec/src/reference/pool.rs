//! Reference of `ops/pool.rs`.

use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::{Pool, PoolGrad, Pooling};

/// The part that each token has of its sample's vector.
fn parts(pooling: Pooling, segments: &[i32], tokens: usize) -> Vec<f64> {
    let of_sample = |segments: &[i32]| {
        let present = |t: usize| if segments[t] == 0 { 0.0 } else { 1.0 };
        let count = (0..tokens).map(present).sum::<f64>();
        let part = |t: usize| match pooling {
            Pooling::Mean => present(t) / count.max(1.0),
            Pooling::First if t == 0 => present(t),
            Pooling::First => 0.0,
        };
        (0..tokens).map(part).collect::<Vec<_>>()
    };
    segments.chunks_exact(tokens).flat_map(of_sample).collect()
}

impl Reference for Pool {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (x, shape) = (call.f(0), &call.io.inputs[0].shape);
        let parts = parts(self.pooling, call.i(1), shape[1]);
        for (i, y) in outputs[0].iter_mut().enumerate() {
            let (b, c) = (i / shape[2], i % shape[2]);
            let term = |t: usize| parts[b * shape[1] + t] * x[(b * shape[1] + t) * shape[2] + c].to_f64();
            *y = F::from_f64((0..shape[1]).map(term).sum());
        }
    }
}

impl Reference for PoolGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (dy, shape) = (call.f(0), &call.io.inputs[2].shape);
        let parts = parts(self.pooling, call.i(1), shape[1]);
        for (i, dx) in outputs[0].iter_mut().enumerate() {
            let (row, c) = (i / shape[2], i % shape[2]);
            *dx = dy[row / shape[1] * shape[2] + c].map(|dy| dy * parts[row]);
        }
    }
}
