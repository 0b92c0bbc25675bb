//! Reference of `ops/paired_head_loss.rs`.

use super::head::{Gradients, Head};
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
    head: &Head<F>,
) -> (f64, Vec<Option<[Vec<f64>; 2]>>) {
    let (targets, v) = (call.i(3), head.vocab);
    let smoothing = f64::from(smoothing);
    let mut loss = 0.0;
    let slopes = targets.iter().enumerate().map(|(row, &target)| {
        let target = usize::try_from(target).ok()?;
        let logits = [0, 1].map(|draw| {
            let logits = head.logits(draw, row).into_iter();
            logits.map(|logit| capped(cap, logit)).collect::<Vec<_>>()
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
        let head = Head::of(call, 2, self.adapter);
        outputs[0][0] = F::from_f64(loss_and_slopes([self.alpha, self.smoothing], self.cap, call, &head).0);
    }
}

impl Reference for PairedHeadLossGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let head = Head::of(call, 2, self.adapter.is_some());
        let (loss, slopes) = loss_and_slopes([self.alpha, self.smoothing], self.cap, call, &head);
        let scale = f64::from(call.scalars.loss_scale) * f64::from(call.scalars.gradient_scale);
        start(self.accumulate_loss, &mut outputs[0]);
        outputs[0][0] += F::from_f64(loss);
        let mut gradients = Gradients::of(&head);
        for draw in [0, 1] {
            for (row, slopes) in slopes.iter().enumerate() {
                gradients.add(draw, row, slopes.iter().flat_map(|slopes| &slopes[draw]).map(|slope| scale * slope));
            }
        }
        gradients.write(&self.requested(), self.accumulate, &mut outputs[1..]);
    }
}
