//! Reference of `ops/head_log_probs.rs`.

use super::soft_cap::{capped, slope};
use super::{Real, RefCall, Reference, start};
use plimsoll_graph::ops::{HeadLogProbs, HeadLogProbsGrad, grouped_target};

/// A token's target.
struct OfToken {
    log_prob: f64,
    /// The slopes of the log-probability in the logits before the cap.
    slopes: Vec<f64>,
    /// The group of the target: 0 or 1.
    group: usize,
}

/// The targets of all tokens; `None` without one.
fn of_tokens<F: Real>(cap: Option<f32>, call: &RefCall<F>) -> Vec<Option<OfToken>> {
    let (x, weight, targets) = (call.f(0), call.f(1), call.i(2));
    let (c, v) = (call.io.inputs[0].columns(), call.io.inputs[1].shape[0]);
    let of_token = |(token, &target): (usize, &i32)| {
        let (target, is_second) = grouped_target(target)?;
        let dot = |k: usize| (0..c).map(|i| x[token * c + i].to_f64() * weight[k * c + i].to_f64()).sum::<f64>();
        let logits = (0..v).map(|k| capped(cap, dot(k))).collect::<Vec<_>>();
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = largest + logits.iter().map(|logit| (logit - largest).exp()).sum::<f64>().ln();
        let is_target = |k: usize| f64::from(u8::from(k == target));
        let slopes = logits.iter().enumerate().map(|(k, z)| (is_target(k) - (z - lse).exp()) * slope(cap, *z));
        Some(OfToken { log_prob: logits[target] - lse, slopes: slopes.collect(), group: usize::from(is_second) })
    };
    targets.iter().enumerate().map(of_token).collect()
}

impl Reference for HeadLogProbs {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let tokens = call.io.inputs[2].columns();
        let mut sums = vec![0.0; call.io.outputs[0].elements()];
        let groups = sums.len() / call.io.inputs[2].shape[0];
        for (token, of_token) in of_tokens(self.cap, call).into_iter().enumerate() {
            let Some(OfToken { log_prob, group, .. }) = of_token else { continue };
            sums[token / tokens * groups + group % groups] += log_prob;
        }
        outputs[0] = sums.into_iter().map(F::from_f64).collect();
    }
}

impl Reference for HeadLogProbsGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (x, weight, of_rows) = (call.f(0), call.f(1), call.f(3));
        let (c, tokens) = (call.io.inputs[0].columns(), call.io.inputs[2].columns());
        let (mut dx, mut dweight) = (vec![0.0; x.len()], vec![0.0; weight.len()]);
        let groups = of_rows.len() / call.io.inputs[2].shape[0];
        for (token, of_token) in of_tokens(self.cap, call).into_iter().enumerate() {
            let Some(OfToken { slopes, group, .. }) = of_token else { continue };
            let of_sum = of_rows[token / tokens * groups + group % groups].to_f64();
            for (k, slope) in slopes.into_iter().map(|slope| slope * of_sum).enumerate() {
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
