//! Reference of `ops/head_log_probs.rs`.

use super::head::{Gradients, Head};
use super::soft_cap::{capped, slope};
use super::{Real, RefCall, Reference};
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
fn of_tokens<F: Real>(cap: Option<f32>, call: &RefCall<F>, head: &Head<F>) -> Vec<Option<OfToken>> {
    let of_token = |(token, &target): (usize, &i32)| {
        let (target, is_second) = grouped_target(target)?;
        let logits = head.logits(0, token).into_iter().map(|logit| capped(cap, logit)).collect::<Vec<_>>();
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = largest + logits.iter().map(|logit| (logit - largest).exp()).sum::<f64>().ln();
        let is_target = |k: usize| f64::from(u8::from(k == target));
        let slopes = logits.iter().enumerate().map(|(k, z)| (is_target(k) - (z - lse).exp()) * slope(cap, *z));
        Some(OfToken { log_prob: logits[target] - lse, slopes: slopes.collect(), group: usize::from(is_second) })
    };
    call.i(2).iter().enumerate().map(of_token).collect()
}

impl Reference for HeadLogProbs {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let tokens = call.io.inputs[2].columns();
        let mut sums = vec![0.0; call.io.outputs[0].elements()];
        let groups = sums.len() / call.io.inputs[2].shape[0];
        let head = Head::of(call, 1, self.adapter);
        for (token, of_token) in of_tokens(self.cap, call, &head).into_iter().enumerate() {
            let Some(OfToken { log_prob, group, .. }) = of_token else { continue };
            sums[token / tokens * groups + group % groups] += log_prob;
        }
        outputs[0] = sums.into_iter().map(F::from_f64).collect();
    }
}

impl Reference for HeadLogProbsGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let head = Head::of(call, 1, self.adapter.is_some());
        let of_rows = call.f(if self.adapter.is_some() { 5 } else { 3 });
        let (tokens, groups) = (call.io.inputs[2].columns(), of_rows.len() / call.io.inputs[2].shape[0]);
        let mut gradients = Gradients::of(&head);
        for (token, of_token) in of_tokens(self.cap, call, &head).into_iter().enumerate() {
            let Some(OfToken { slopes, group, .. }) = of_token else { continue };
            let of_sum = of_rows[token / tokens * groups + group % groups].to_f64();
            gradients.add(0, token, slopes.into_iter().map(|slope| slope * of_sum));
        }
        gradients.write(&self.requested(), self.accumulate, outputs);
    }
}
