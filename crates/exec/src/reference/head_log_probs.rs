//! Reference of `ops/head_log_probs.rs`.

use super::soft_cap::{capped, slope};
use super::{Real, RefCall, Reference, start};
use plimsoll_graph::ops::{HeadLogProbs, HeadLogProbsGrad};

/// The log-probability of each token's target, and its slopes in the logits before the cap. `None` without a target.
fn of_tokens<F: Real>(cap: Option<f32>, call: &RefCall<F>) -> Vec<Option<(f64, Vec<f64>)>> {
    let (x, weight, targets) = (call.f(0), call.f(1), call.i(2));
    let (c, v) = (call.io.inputs[0].columns(), call.io.inputs[1].shape[0]);
    let of_token = |(token, &target): (usize, &i32)| {
        let target = usize::try_from(target).ok()?;
        let dot = |k: usize| (0..c).map(|i| x[token * c + i].to_f64() * weight[k * c + i].to_f64()).sum::<f64>();
        let logits = (0..v).map(|k| capped(cap, dot(k))).collect::<Vec<_>>();
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = largest + logits.iter().map(|logit| (logit - largest).exp()).sum::<f64>().ln();
        let is_target = |k: usize| f64::from(u8::from(k == target));
        let slopes = logits.iter().enumerate().map(|(k, z)| (is_target(k) - (z - lse).exp()) * slope(cap, *z));
        Some((logits[target] - lse, slopes.collect()))
    };
    targets.iter().enumerate().map(of_token).collect()
}

impl Reference for HeadLogProbs {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let tokens = call.io.inputs[2].columns();
        let of_tokens = of_tokens(self.cap, call);
        let sums = of_tokens.chunks(tokens).map(|row| row.iter().flatten().map(|(log_prob, _)| log_prob).sum());
        outputs[0] = sums.map(|sum: f64| F::from_f64(sum)).collect();
    }
}

impl Reference for HeadLogProbsGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (x, weight, of_rows) = (call.f(0), call.f(1), call.f(3));
        let (c, tokens) = (call.io.inputs[0].columns(), call.io.inputs[2].columns());
        let (mut dx, mut dweight) = (vec![0.0; x.len()], vec![0.0; weight.len()]);
        for (token, of_token) in of_tokens(self.cap, call).into_iter().enumerate() {
            let slopes = of_token.into_iter().flat_map(|(_, slopes)| slopes);
            for (k, slope) in slopes.map(|slope| slope * of_rows[token / tokens].to_f64()).enumerate() {
                for i in 0..c {
                    dx[token * c + i] += slope * weight[k * c + i].to_f64();
                    dweight[k * c + i] += slope * x[token * c + i].to_f64();
                }
            }
        }
        if self.input {
            outputs[0] = dx.into_iter().map(F::from_f64).collect();
        }
        if self.weight {
            let total = &mut outputs[usize::from(self.input)];
            start(self.accumulate, total);
            total.iter_mut().zip(dweight).for_each(|(total, part)| *total += F::from_f64(part));
        }
    }
}
