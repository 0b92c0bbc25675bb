//! The output head with cross-entropy: a chunk of rows at a time, whose logits are replaced by their gradient.

use super::CpuKernel;
use super::head::{Gradients, Head};
use super::math::{exp, exponentials, maximum, sum, update};
use super::parallel;
use super::soft_cap::cap_in_place;
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::ops;
use pulp::Simd;
use rayon::iter::{IndexedParallelIterator, IntoParallelRefMutIterator};
use rayon::slice::ParallelSliceMut;

impl CpuKernel for ops::HeadLoss {
    fn run(&self, mut call: Call) {
        let [head] = Head::all(self.chunk, &call, self.adapter);
        let [loss] = call.take_outputs();
        let [logits, losses, room] = head.scratch(call.take_scratch());
        let mut total = 0.0;
        for first in (0..head.rows).step_by(head.chunk) {
            let (logits, targets) = head.logits(first, logits, room);
            let rows = logits.par_chunks_exact_mut(head.vocab).zip(losses.par_iter_mut()).zip(targets);
            parallel::for_each(targets.len() * head.vocab, rows, |((logits, loss), &target)| {
                *loss = row_loss(logits, target, self.smoothing, self.cap);
            });
            total += losses[..targets.len()].iter().copied().map(f64::from).sum::<f64>();
        }
        loss[0] = (total * f64::from(call.scalars.loss_scale)) as f32;
    }
}

impl CpuKernel for ops::HeadLossGrad {
    fn run(&self, mut call: Call) {
        let [head] = Head::all(self.chunk, &call, self.adapter.is_some());
        let scale = call.scalars.loss_scale;
        let slope_scale = scale * call.scalars.gradient_scale;
        let mut outputs = call.take_byte_outputs();
        let loss: &mut [f32] = bytemuck::cast_slice_mut(outputs.next().expect("the loss is a result"));
        let mut gradients = Gradients::take(&mut outputs, [&head], &self.requested(), self.accumulate);
        let [logits, losses, room] = head.scratch(call.take_scratch());
        let mut total = 0.0;
        for first in (0..head.rows).step_by(head.chunk) {
            let (logits, targets) = head.logits(first, logits, room);
            let rows = logits.par_chunks_exact_mut(head.vocab).zip(losses.par_iter_mut()).zip(targets);
            parallel::for_each(targets.len() * head.vocab, rows, |((logits, loss), &target)| {
                *loss = gradient_of_row(logits, target, self.smoothing, self.cap, slope_scale);
                head.round(logits);
            });
            total += losses[..targets.len()].iter().copied().map(f64::from).sum::<f64>();
            gradients.add(&head, 0, first, logits, room);
        }
        let before = if self.accumulate_loss { loss[0] } else { 0.0 };
        loss[0] = before + (total * f64::from(scale)) as f32;
    }
}

/// Logits of a row that are processed together, so that they stay in the first-level cache between passes.
pub(super) const STRETCH: usize = 1 << 10;

/// (1 - ε) times the target's logit and ε times the mean of all: the difference of a row's log-sum-exp and its loss.
#[inline(always)]
pub(super) fn wanted<S: Simd>(simd: S, logits: &[f32], target: usize, smoothing: f32) -> f32 {
    if smoothing == 0.0 {
        return logits[target];
    }
    (1.0 - smoothing) * logits[target] + smoothing * (sum(simd, logits) / logits.len() as f32)
}

/// The slope of a cap at a capped logit.
#[inline(always)]
pub(super) fn slope(logit: f32, cap: f32) -> f32 {
    let part = logit / cap;
    1.0 - part * part
}

/// log Σ exp z.
#[inline(always)]
pub(super) fn log_sum_exp<S: Simd>(simd: S, z: &[f32]) -> f32 {
    let largest = maximum(simd, z);
    let mut room = [0.0; STRETCH];
    let mut total = 0.0;
    for part in z.chunks(STRETCH) {
        let p = &mut room[..part.len()];
        p.copy_from_slice(part);
        update!(simd, [p], exp(simd, simd.sub_f32s(p, simd.splat_f32s(largest))));
        total += sum(simd, &room[..part.len()]);
    }
    largest + total.ln()
}

/// The loss of a row, whose logits are replaced by the gradient of `scale` times the loss.
pub(super) fn gradient_of_row(logits: &mut [f32], target: i32, smoothing: f32, cap: Option<f32>, scale: f32) -> f32 {
    match cap {
        None => replace_by_gradient(logits, target, smoothing, scale),
        Some(cap) => replace_by_gradient_within_cap(logits, target, smoothing, cap, scale),
    }
}

vectorized! {
    /// The loss of a row, whose logits are overwritten; zero if it has no target.
    pub(super) fn row_loss<S: Simd>(simd: S, logits: &mut [f32], target: i32, smoothing: f32, cap: Option<f32>) -> f32 {
        let Ok(target) = usize::try_from(target) else { return 0.0 };
        if let Some(cap) = cap {
            cap_in_place(simd, logits, cap);
        }
        let wanted = wanted(simd, logits, target, smoothing);
        let [largest, sum] = exponentials(simd, logits);
        largest + sum.ln() - wanted
    }

    /// The loss of a row, whose logits are replaced by the gradient of `scale` times the loss.
    fn replace_by_gradient<S: Simd>(simd: S, logits: &mut [f32], target: i32, smoothing: f32, scale: f32) -> f32 {
        let Ok(target) = usize::try_from(target) else {
            logits.fill(0.0);
            return 0.0;
        };
        let wanted = wanted(simd, logits, target, smoothing);
        let [largest, sum] = exponentials(simd, logits);
        let factor = scale / sum;
        let spread = scale * smoothing / logits.len() as f32;
        for logit in &mut *logits {
            *logit = *logit * factor - spread;
        }
        logits[target] -= scale * (1.0 - smoothing);
        largest + sum.ln() - wanted
    }
    /// The same with a cap, through which the gradient passes.
    fn replace_by_gradient_within_cap<S: Simd>(
        simd: S,
        logits: &mut [f32],
        target: i32,
        smoothing: f32,
        cap: f32,
        scale: f32,
    ) -> f32 {
        let Ok(target) = usize::try_from(target) else {
            logits.fill(0.0);
            return 0.0;
        };
        cap_in_place(simd, logits, cap);
        let (wanted, lse) = (wanted(simd, logits, target, smoothing), log_sum_exp(simd, logits));
        let of_target = scale * (1.0 - smoothing) * slope(logits[target], cap);
        let spread = scale * smoothing / logits.len() as f32;
        let mut room = [0.0; STRETCH];
        for logits in logits.chunks_mut(STRETCH) {
            let p = &mut room[..logits.len()];
            p.copy_from_slice(logits);
            update!(simd, [p], exp(simd, simd.sub_f32s(p, simd.splat_f32s(lse))));
            for (logit, p) in logits.iter_mut().zip(&room) {
                *logit = (scale * p - spread) * slope(*logit, cap);
            }
        }
        logits[target] -= of_target;
        lse - wanted
    }
}
