//! Reference of `ops/head_loss.rs`.

use super::head::{Gradients, Head};
use super::soft_cap::{capped, slope};
use super::{Real, RefCall, Reference, start};
use plimsoll_graph::ops::{HeadLoss, HeadLossGrad};

/// The loss, and for each row with a target the slope of the loss in each logit.
fn loss_and_slopes<F: Real>(
    smoothing: f32,
    cap: Option<f32>,
    call: &RefCall<F>,
    head: &Head<F>,
) -> (f64, Vec<Option<Vec<f64>>>) {
    let (targets, v) = (call.i(2), head.vocab);
    let scale = f64::from(call.scalars.loss_scale);
    let smoothing = f64::from(smoothing);
    let mut loss = 0.0;
    let slopes = targets.iter().enumerate().map(|(row, &target)| {
        let target = usize::try_from(target).ok()?;
        let logits = head.logits(0, row).into_iter().map(|logit| capped(cap, logit)).collect::<Vec<_>>();
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = largest + logits.iter().map(|l| (l - largest).exp()).sum::<f64>().ln();
        let wanted = |k: usize| smoothing / v as f64 + if k == target { 1.0 - smoothing } else { 0.0 };
        loss += (0..v).map(|k| wanted(k) * (lse - logits[k])).sum::<f64>();
        let slope_scale = scale * f64::from(call.scalars.gradient_scale);
        Some((0..v).map(|k| ((logits[k] - lse).exp() - wanted(k)) * slope(cap, logits[k]) * slope_scale).collect())
    });
    let slopes = slopes.collect();
    (loss * scale, slopes)
}

impl Reference for HeadLoss {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let head = Head::of(call, 1, self.adapter);
        outputs[0][0] = F::from_f64(loss_and_slopes(self.smoothing, self.cap, call, &head).0);
    }
}

impl Reference for HeadLossGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let head = Head::of(call, 1, self.adapter.is_some());
        let (loss, slopes) = loss_and_slopes(self.smoothing, self.cap, call, &head);
        start(self.accumulate_loss, &mut outputs[0]);
        outputs[0][0] += F::from_f64(loss);
        let mut gradients = Gradients::of(&head);
        for (row, slopes) in slopes.into_iter().enumerate() {
            gradients.add(0, row, slopes.into_iter().flatten());
        }
        gradients.write(&self.requested(), self.accumulate, &mut outputs[1..]);
    }
}
