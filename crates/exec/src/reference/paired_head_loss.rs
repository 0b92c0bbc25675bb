//! Reference of `ops/paired_head_loss.rs`.

use super::soft_cap::{capped, slope};
use super::{Real, RefCall, Reference, start};
use plimsoll_graph::ops::{PairedHeadLoss, PairedHeadLossGrad};

/// Log-probabilities of the vocabulary.
fn log_softmax(logits: &[f64]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let lse = largest + logits.iter().map(|l| (l - largest).exp()).sum::<f64>().ln();
    logits.iter().map(|l| l - lse).collect()
}

/// The loss of a row, and its slope in each logit of each draw, from the log-probabilities.
fn row_loss(alpha: f64, wanted: &[f64], logs: &[Vec<f64>; 2]) -> (f64, [Vec<f64>; 2]) {
    let cross_entropy = |log: &[f64]| -wanted.iter().zip(log).map(|(w, l)| w * l).sum::<f64>();
    let divergence = |of: &[f64], from: &[f64]| of.iter().zip(from).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
    let slopes = |of: &[f64], from: &[f64]| {
        let mean = divergence(of, from);
        let slope = |k: usize| {
            let (p, q) = (of[k].exp(), from[k].exp());
            0.5 * (p - wanted[k]) + alpha * 0.5 * (p * (of[k] - from[k] - mean) + p - q)
        };
        (0..of.len()).map(slope).collect::<Vec<_>>()
    };
    let [a, b] = logs;
    let loss = 0.5 * (cross_entropy(a) + cross_entropy(b)) + alpha * 0.5 * (divergence(a, b) + divergence(b, a));
    (loss, [slopes(a, b), slopes(b, a)])
}

/// The loss, and for each row with a target the slopes of the loss in each logit of each draw.
fn loss_and_slopes<F: Real>(
    [alpha, smoothing]: [f32; 2],
    cap: Option<f32>,
    call: &RefCall<F>,
) -> (f64, Vec<Option<[Vec<f64>; 2]>>) {
    let (weight, targets) = (call.f(2), call.i(3));
    let (c, v) = (call.io.inputs[0].columns(), call.io.inputs[2].shape[0]);
    let smoothing = f64::from(smoothing);
    let mut loss = 0.0;
    let slopes = targets.iter().enumerate().map(|(row, &target)| {
        let target = usize::try_from(target).ok()?;
        let logits = [0, 1].map(|draw| {
            let x = &call.f(draw)[row * c..][..c];
            let dot = |k: usize| (0..c).map(|i| x[i].to_f64() * weight[k * c + i].to_f64()).sum::<f64>();
            (0..v).map(|k| capped(cap, dot(k))).collect::<Vec<_>>()
        });
        let logs = [0, 1].map(|draw: usize| log_softmax(&logits[draw]));
        let wanted = |k: usize| smoothing / v as f64 + if k == target { 1.0 - smoothing } else { 0.0 };
        let (row_loss, mut slopes) = row_loss(f64::from(alpha), &(0..v).map(wanted).collect::<Vec<_>>(), &logs);
        loss += row_loss;
        for (slopes, logits) in slopes.iter_mut().zip(&logits) {
            slopes.iter_mut().zip(logits).for_each(|(of_loss, logit)| *of_loss *= slope(cap, *logit));
        }
        Some(slopes)
    });
    let slopes = slopes.collect();
    (loss * f64::from(call.scalars.loss_scale), slopes)
}

impl Reference for PairedHeadLoss {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        outputs[0][0] = F::from_f64(loss_and_slopes([self.alpha, self.smoothing], self.cap, call).0);
    }
}

impl Reference for PairedHeadLossGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (weight, c) = (call.f(2), call.io.inputs[0].columns());
        let (loss, slopes) = loss_and_slopes([self.alpha, self.smoothing], self.cap, call);
        let scale = f64::from(call.scalars.loss_scale) * f64::from(call.scalars.gradient_scale);
        start(self.accumulate_loss, &mut outputs[0]);
        outputs[0][0] += F::from_f64(loss);
        let mut dweight = vec![0.0; weight.len()];
        for draw in [0, 1] {
            let x = call.f(draw);
            let mut dx = vec![0.0; x.len()];
            for (row, slopes) in slopes.iter().enumerate() {
                for (k, slope) in slopes.iter().flat_map(|slopes| &slopes[draw]).enumerate() {
                    for i in 0..c {
                        dx[row * c + i] += scale * slope * weight[k * c + i].to_f64();
                        dweight[k * c + i] += scale * slope * x[row * c + i].to_f64();
                    }
                }
            }
            if self.input {
                outputs[1 + draw] = dx.into_iter().map(F::from_f64).collect();
            }
        }
        if self.weight {
            let total = &mut outputs[if self.input { 3 } else { 1 }];
            start(self.accumulate, total);
            total.iter_mut().zip(dweight).for_each(|(total, part)| *total += F::from_f64(part));
        }
    }
}
