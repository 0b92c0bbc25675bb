//! Reference of `ops/layer_norm.rs`.

use super::{Real, RefCall, Reference, start};
use plimsoll_graph::ops::{LayerNorm, LayerNormGrad};

impl Reference for LayerNorm {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (x, weight, c) = (call.f(0), call.f(1), call.io.inputs[0].columns());
        for (row, x) in x.chunks_exact(c).enumerate() {
            let mean = x.iter().map(|x| x.to_f64()).sum::<f64>() / c as f64;
            let variance = x.iter().map(|x| (x.to_f64() - mean).powi(2)).sum::<f64>() / c as f64;
            let rstd = 1.0 / (variance + f64::from(self.eps)).sqrt();
            for k in 0..c {
                let bias = if self.bias { call.f(2)[k].to_f64() } else { 0.0 };
                outputs[0][row * c + k] = F::from_f64((x[k].to_f64() - mean) * rstd * weight[k].to_f64() + bias);
            }
            outputs[1][row] = F::from_f64(mean);
            outputs[2][row] = F::from_f64(rstd);
        }
    }
}

impl Reference for LayerNormGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (dy, x, weight, mean, rstd) = (call.f(0), call.f(1), call.f(2), call.f(3), call.f(4));
        let c = call.io.inputs[1].columns();
        for sum in &mut outputs[1..] {
            start(self.accumulate, sum);
        }
        for row in 0..x.len() / c {
            let at = |values: &[F], k: usize| values[row * c + k].to_f64();
            let rstd = rstd[row].to_f64();
            let normed = |k: usize| (at(x, k) - mean[row].to_f64()) * rstd;
            let slope = |k: usize| at(dy, k) * weight[k].to_f64();
            let mean_slope = (0..c).map(slope).sum::<f64>() / c as f64;
            let mean_product = (0..c).map(|k| slope(k) * normed(k)).sum::<f64>() / c as f64;
            for k in 0..c {
                let other = if self.residual { at(call.f(5), k) } else { 0.0 };
                let dx = (slope(k) - mean_slope - normed(k) * mean_product) * rstd;
                outputs[0][row * c + k] = F::from_f64(dx + other);
                if self.weight {
                    outputs[1][k] += F::from_f64(at(dy, k) * normed(k));
                }
                if self.bias {
                    outputs[1 + usize::from(self.weight)][k] += dy[row * c + k];
                }
            }
        }
    }
}
