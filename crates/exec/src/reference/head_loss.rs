//! Reference of `ops/head_loss.rs`.

use super::soft_cap::{capped, slope};
use super::{Real, RefCall, Reference, start};
use plimsoll_graph::ops::{HeadLoss, HeadLossGrad};

/// The loss, and for each row with a target the slope of the loss in each logit.
fn loss_and_slopes<F: Real>(smoothing: f32, cap: Option<f32>, call: &RefCall<F>) -> (f64, Vec<Option<Vec<f64>>>) {
    let (x, weight, targets) = (call.f(0), call.f(1), call.i(2));
    let (c, v) = (call.io.inputs[0].columns(), call.io.inputs[1].shape[0]);
    let scale = f64::from(call.scalars.loss_scale);
    let smoothing = f64::from(smoothing);
    let mut loss = 0.0;
    let slopes = targets.iter().enumerate().map(|(row, &target)| {
        let target = usize::try_from(target).ok()?;
        let dot = |k: usize| (0..c).map(|i| x[row * c + i].to_f64() * weight[k * c + i].to_f64()).sum::<f64>();
        let logit = |k: usize| capped(cap, dot(k));
        let logits = (0..v).map(logit).collect::<Vec<_>>();
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
        outputs[0][0] = F::from_f64(loss_and_slopes(self.smoothing, self.cap, call).0);
    }
}

impl Reference for HeadLossGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (x, weight, c) = (call.f(0), call.f(1), call.io.inputs[0].columns());
        let (loss, slopes) = loss_and_slopes(self.smoothing, self.cap, call);
        start(self.accumulate_loss, &mut outputs[0]);
        outputs[0][0] += F::from_f64(loss);
        let mut dx = vec![0.0; x.len()];
        let mut dweight = vec![0.0; weight.len()];
        for (row, slopes) in slopes.iter().enumerate() {
            for (k, slope) in slopes.iter().flatten().enumerate() {
                for i in 0..c {
                    dx[row * c + i] += slope * weight[k * c + i].to_f64();
                    dweight[k * c + i] += slope * x[row * c + i].to_f64();
                }
            }
        }
        if self.input {
            outputs[1] = dx.into_iter().map(F::from_f64).collect();
        }
        if self.weight {
            let total = &mut outputs[1 + usize::from(self.input)];
            start(self.accumulate, total);
            total.iter_mut().zip(dweight).for_each(|(total, part)| *total += F::from_f64(part));
        }
    }
}
