//! Reference of `ops/rms_norm.rs`.

use super::{Real, RefCall, Reference, start};
use plimsoll_graph::ops::{RmsNorm, RmsNormGrad};

/// The factor of a normalized channel with this weight.
fn factor<F: Real>(unit_offset: bool, weight: F) -> f64 {
    if unit_offset { 1.0 + weight.to_f64() } else { weight.to_f64() }
}

impl Reference for RmsNorm {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (x, weight, c) = (call.f(0), call.f(1), call.f(1).len());
        for (row, x) in x.chunks_exact(c).enumerate() {
            let mean_square = x.iter().map(|x| x.to_f64().powi(2)).sum::<f64>() / c as f64;
            let rstd = 1.0 / (mean_square + f64::from(self.eps)).sqrt();
            for k in 0..c {
                outputs[0][row * c + k] = F::from_f64(x[k].to_f64() * rstd * factor(self.unit_offset, weight[k]));
            }
            outputs[1][row] = F::from_f64(rstd);
        }
    }
}

impl Reference for RmsNormGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (dy, x, weight, rstd) = (call.f(0), call.f(1), call.f(2), call.f(3));
        let c = weight.len();
        for sum in &mut outputs[1..] {
            start(self.accumulate, sum);
        }
        for (row, rstd) in rstd.iter().enumerate() {
            let at = |values: &[F], k: usize| values[row * c + k].to_f64();
            let normed = |k: usize| at(x, k) * rstd.to_f64();
            let slope = |k: usize| at(dy, k) * factor(self.unit_offset, weight[k]);
            let mean_product = (0..c).map(|k| slope(k) * normed(k)).sum::<f64>() / c as f64;
            for k in 0..c {
                let other = if self.residual { at(call.f(4), k) } else { 0.0 };
                let dx = (slope(k) - normed(k) * mean_product) * rstd.to_f64();
                outputs[0][row * c + k] = F::from_f64(dx + other);
                if self.weight {
                    outputs[1][k] += F::from_f64(at(dy, k) * normed(k));
                }
            }
        }
    }
}
