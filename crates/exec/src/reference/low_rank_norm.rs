//! Reference of `ops/low_rank_norm.rs`.

use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::LowRankNorm;

impl Reference for LowRankNorm {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (norms, sums, up) = (call.f(0), call.f(1), call.f(2));
        let (columns, rank) = (norms.len(), up.len() / norms.len());
        for (o, norm) in outputs[0].iter_mut().enumerate() {
            let product = (0..rank).map(|k| sums[k * columns + o].to_f64() * up[o * rank + k].to_f64()).sum::<f64>();
            let square = norms[o].to_f64().powi(2) + 2.0 * f64::from(self.scale) * product;
            *norm = F::from_f64(square.max(0.0).sqrt());
        }
    }
}
