//! Reference of `ops/route.rs`.

use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::{Route, RouteGrad};
use std::cmp::Ordering;

/// Softmax of the logits with these indices; zero for all others.
fn softmax<F: Real>(logits: &[F], among: &[usize]) -> Vec<f64> {
    let largest = among.iter().map(|&e| logits[e].to_f64()).fold(f64::NEG_INFINITY, f64::max);
    let total = among.iter().map(|&e| (logits[e].to_f64() - largest).exp()).sum::<f64>();
    let mut probabilities = vec![0.0; logits.len()];
    for &e in among {
        probabilities[e] = (logits[e].to_f64() - largest).exp() / total;
    }
    probabilities
}

impl Reference for Route {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (logits, count, chosen) = (call.f(0), call.io.inputs[0].columns(), self.experts_per_token);
        let all = (0..count).collect::<Vec<_>>();
        let mut sums = vec![0.0; count];
        let mut tokens_of = vec![Vec::new(); count];
        for (token, logits) in logits.chunks_exact(count).enumerate() {
            let mut order = all.clone();
            // A stable sort: the lower index comes first among equal logits.
            order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap_or(Ordering::Equal));
            order.truncate(chosen);
            let probabilities = softmax(logits, &all);
            sums.iter_mut().zip(&probabilities).for_each(|(sum, p)| *sum += p);
            let weights = if self.normalized { softmax(logits, &order) } else { probabilities };
            for (k, expert) in order.into_iter().enumerate() {
                outputs[0][token * chosen + k] = F::from_f64(weights[expert]);
                outputs[1][token * chosen + k] = F::from_f64(expert as f64);
                tokens_of[expert].push(token * chosen + k);
            }
        }
        let mut place = 0;
        for (expert, choices) in tokens_of.into_iter().enumerate() {
            outputs[3][expert] = F::from_f64(f64::from(place));
            for choice in choices {
                outputs[2][choice] = F::from_f64(f64::from(place));
                place += 1;
            }
        }
        outputs[3][count] = F::from_f64(f64::from(place));
        if self.sums {
            outputs[4] = sums.into_iter().map(F::from_f64).collect();
        }
    }
}

impl Reference for RouteGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (count, chosen) = (call.io.inputs[0].columns(), call.io.inputs[1].columns());
        let all = (0..count).collect::<Vec<_>>();
        let tokens =
            call.f(0).chunks_exact(count).zip(call.i(1).chunks_exact(chosen)).zip(call.f(2).chunks_exact(chosen));
        for (((logits, experts), dweights), dlogits) in tokens.zip(outputs[0].chunks_exact_mut(count)) {
            let experts = experts.iter().map(|&expert| expert as usize).collect::<Vec<_>>();
            let mut of_weights = vec![0.0; count];
            experts.iter().zip(dweights).for_each(|(&expert, dweight)| of_weights[expert] = dweight.to_f64());
            let of_sums = (0..count).map(|e| if self.sums { call.f(3)[e].to_f64() } else { 0.0 }).collect::<Vec<_>>();
            let mut total = through(&softmax(logits, &all), &of_sums);
            let weights = softmax(logits, if self.normalized { &experts } else { &all });
            total.iter_mut().zip(through(&weights, &of_weights)).for_each(|(total, part)| *total += part);
            dlogits.iter_mut().zip(total).for_each(|(dlogit, total)| *dlogit = F::from_f64(total));
        }
    }
}

/// The gradient of a softmax's operands from its results and their gradient.
fn through(probabilities: &[f64], gradient: &[f64]) -> Vec<f64> {
    let mean = probabilities.iter().zip(gradient).map(|(p, slope)| p * slope).sum::<f64>();
    probabilities.iter().zip(gradient).map(|(p, slope)| p * (slope - mean)).collect()
}
