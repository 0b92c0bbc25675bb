//! The contrastive loss: products of normalized vectors, and a softmax over each anchor's similarities.

use super::CpuKernel;
use super::math::dot;
use super::matrix::{Matrix, MatrixMut};
use super::tiled::{Factor, Sums, any_product};
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::ops;

impl CpuKernel for ops::ContrastiveLoss {
    fn run(&self, mut call: Call) {
        let [loss] = call.take_outputs();
        let mut similarities = Similarities::new(&mut call, self.scale);
        loss[0] = call.scalars.loss_scale * similarities.losses(None);
    }
}

impl CpuKernel for ops::ContrastiveLossGrad {
    fn run(&self, mut call: Call) {
        let [loss, danchors, dcandidates] = call.take_outputs();
        let mut similarities = Similarities::new(&mut call, self.scale);
        let scale = call.scalars.loss_scale;
        let before = if self.accumulate_loss { loss[0] } else { 0.0 };
        loss[0] = before + scale * similarities.losses(Some(self.scale * scale * call.scalars.gradient_scale));
        similarities.backward(danchors, dcandidates);
    }
}

/// Normalized vectors and their similarities.
struct Similarities<'a> {
    /// Anchors, channels, candidates.
    extents: [usize; 3],
    present: &'a [i32],
    /// Normalized anchors, then candidates: (B + k·B, C).
    units: &'a mut [f32],
    /// The reciprocal of each vector's length.
    inverse: &'a mut [f32],
    /// (B, k·B).
    values: &'a mut [f32],
    room: &'a mut [f32],
    workers: usize,
}

impl<'a> Similarities<'a> {
    fn new(call: &mut Call<'a>, scale: f32) -> Self {
        let (anchors, candidates) = (call.f32(0), call.f32(1));
        let [rows, channels] = [call.io.inputs[0].shape[0], call.io.inputs[0].shape[1]];
        let count = call.io.inputs[1].shape[0];
        let floats = (rows + count) * (channels + 1) + rows * count + rows;
        let (own, room) = call.take_scratch().split_at_mut(floats.next_multiple_of(16));
        let (units, own) = own.split_at_mut((rows + count) * channels);
        let (inverse, own) = own.split_at_mut(rows + count);
        let vectors = anchors.chunks_exact(channels).chain(candidates.chunks_exact(channels));
        for ((unit, inverse), x) in units.chunks_exact_mut(channels).zip(&mut *inverse).zip(vectors) {
            let length = squares(x).sqrt();
            *inverse = if length > 0.0 { 1.0 / length } else { 0.0 };
            unit.iter_mut().zip(x).for_each(|(unit, x)| *unit = x * *inverse);
        }
        let (values, _) = own.split_at_mut(rows * count);
        let (of_anchors, of_candidates) = units.split_at(rows * channels);
        let [left, right] = [Matrix::new(of_anchors, rows, channels), Matrix::new(of_candidates, count, channels)];
        let into = Sums::F32 { into: MatrixMut::new(values, rows, count), keep: false, bias: None };
        any_product(into, scale, left.into(), Factor::from(right).transposed(), room, call.threads);
        let (present, workers) = (call.i32(2), call.threads);
        Self { extents: [rows, channels, count], present, units, inverse, values, room, workers }
    }

    /// The sum of the anchors' losses. Replaces similarities by the slopes of `scale` times the loss, if there is one.
    fn losses(&mut self, scale: Option<f32>) -> f32 {
        let [rows, _, count] = self.extents;
        let mut total = 0.0;
        for (row, values) in self.values.chunks_exact_mut(count).enumerate() {
            if self.present[row] < 0 {
                values.fill(0.0);
                continue;
            }
            for values in values.chunks_exact_mut(rows) {
                let absent = values.iter_mut().zip(self.present).filter(|(_, present)| **present < 0);
                absent.for_each(|(value, _)| *value = f32::NEG_INFINITY);
            }
            let largest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let lse = largest + values.iter().map(|value| (value - largest).exp()).sum::<f32>().ln();
            total += f64::from(lse - values[row]);
            if let Some(scale) = scale {
                values.iter_mut().for_each(|value| *value = scale * (*value - lse).exp());
                values[row] -= scale;
            }
        }
        total as f32
    }

    /// The gradients of both kinds of vectors, from the slopes.
    fn backward(&mut self, danchors: &mut [f32], dcandidates: &mut [f32]) {
        let [rows, channels, count] = self.extents;
        let (anchors, candidates) = self.units.split_at(rows * channels);
        let [anchors, candidates] =
            [Matrix::new(anchors, rows, channels), Matrix::new(candidates, count, channels)].map(Factor::from);
        let slopes = Factor::from(Matrix::new(self.values, rows, count));
        let sums = |into, rows| Sums::F32 { into: MatrixMut::new(into, rows, channels), keep: false, bias: None };
        any_product(sums(danchors, rows), 1.0, slopes, candidates, self.room, self.workers);
        any_product(sums(dcandidates, count), 1.0, slopes.transposed(), anchors, self.room, self.workers);
        let gradients = danchors.chunks_exact_mut(channels).chain(dcandidates.chunks_exact_mut(channels));
        for ((gradient, unit), inverse) in gradients.zip(self.units.chunks_exact(channels)).zip(&*self.inverse) {
            through_length(gradient, unit, *inverse);
        }
    }
}

vectorized! {
    /// Σ x².
    fn squares<S: Simd>(simd: S, x: &[f32]) -> f32 {
        dot(simd, x, x)
    }

    /// Replaces the gradient of a normalized vector by that of the original.
    fn through_length<S: Simd>(simd: S, gradient: &mut [f32], unit: &[f32], inverse: f32) {
        let along = dot(simd, gradient, unit);
        for (gradient, unit) in gradient.iter_mut().zip(unit) {
            *gradient = (*gradient - along * unit) * inverse;
        }
    }
}
