//! Reference of `ops/contrastive_loss.rs`.

use super::{Real, RefCall, Reference, start};
use plimsoll_graph::ops::{ContrastiveLoss, ContrastiveLossGrad};

/// A vector of length one and the length of the original. A vector of length zero stays.
fn normalized<F: Real>(x: &[F]) -> (Vec<f64>, f64) {
    let length = x.iter().map(|x| x.to_f64().powi(2)).sum::<f64>().sqrt();
    let factor = if length > 0.0 { 1.0 / length } else { 0.0 };
    (x.iter().map(|x| x.to_f64() * factor).collect(), length)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The loss before its scale, and the slopes of each similarity of each anchor.
fn loss_and_slopes(scale: f64, vectors: [&[(Vec<f64>, f64)]; 2], present: &[i32]) -> (f64, Vec<Vec<f64>>) {
    let [anchors, candidates] = vectors;
    let mut loss = 0.0;
    let slopes = anchors.iter().enumerate().map(|(i, (anchor, _))| {
        if present[i] < 0 {
            return vec![0.0; candidates.len()];
        }
        let similarity = |j: usize| match present[j % present.len()] < 0 {
            true => f64::NEG_INFINITY,
            false => scale * dot(anchor, &candidates[j].0),
        };
        let similarities = (0..candidates.len()).map(similarity).collect::<Vec<_>>();
        let largest = similarities.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = largest + similarities.iter().map(|s| (s - largest).exp()).sum::<f64>().ln();
        loss += lse - similarities[i];
        let slope = |(j, s): (usize, &f64)| (s - lse).exp() - if j == i { 1.0 } else { 0.0 };
        similarities.iter().enumerate().map(slope).collect()
    });
    let slopes = slopes.collect();
    (loss, slopes)
}

fn vectors<F: Real>(call: &RefCall<F>, index: usize) -> Vec<(Vec<f64>, f64)> {
    call.f(index).chunks_exact(call.io.inputs[index].columns()).map(normalized).collect()
}

impl Reference for ContrastiveLoss {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let [anchors, candidates] = [0, 1].map(|index| vectors(call, index));
        let (loss, _) = loss_and_slopes(f64::from(self.scale), [&anchors, &candidates], call.i(2));
        outputs[0][0] = F::from_f64(loss * f64::from(call.scalars.loss_scale));
    }
}

impl Reference for ContrastiveLossGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let [anchors, candidates] = [0, 1].map(|index| vectors(call, index));
        let (scale, columns) = (f64::from(self.scale), call.io.inputs[0].columns());
        let (loss, slopes) = loss_and_slopes(scale, [&anchors, &candidates], call.i(2));
        start(self.accumulate_loss, &mut outputs[0]);
        outputs[0][0] += F::from_f64(loss * f64::from(call.scalars.loss_scale));
        let scale = scale * f64::from(call.scalars.loss_scale) * f64::from(call.scalars.gradient_scale);
        // The part of a gradient of a normalized vector that is orthogonal to it, over the original's length.
        let through = |(unit, length): &(Vec<f64>, f64), gradient: &[f64]| {
            let along = dot(unit, gradient);
            let of =
                |(gradient, unit): (&f64, &f64)| if *length > 0.0 { (gradient - along * unit) / length } else { 0.0 };
            gradient.iter().zip(unit).map(of).map(F::from_f64).collect::<Vec<_>>()
        };
        let sum = |others: &[(Vec<f64>, f64)], slope: &dyn Fn(usize) -> f64| {
            let of = |c: usize| others.iter().enumerate().map(|(n, (unit, _))| scale * slope(n) * unit[c]).sum();
            (0..columns).map(of).collect::<Vec<f64>>()
        };
        let of_anchors = anchors.iter().enumerate();
        outputs[1] = of_anchors.flat_map(|(i, anchor)| through(anchor, &sum(&candidates, &|j| slopes[i][j]))).collect();
        let of_candidates = candidates.iter().enumerate();
        outputs[2] = of_candidates.flat_map(|(j, own)| through(own, &sum(&anchors, &|i| slopes[i][j]))).collect();
    }
}
