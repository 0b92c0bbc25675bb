//! The output head over two dropout draws: a chunk of rows at a time, whose logits are replaced by their gradients.
//! Each pass over a row recomputes probabilities, a piece at a time that stays in the first-level cache, since the
//! logits of both draws are needed until the last pass.

use super::CpuKernel;
use super::head::{Gradients, Head};
use super::head_loss::{STRETCH, log_sum_exp, slope, wanted};
use super::math::{dot, exp, update};
use super::parallel;
use super::soft_cap::cap_in_place;
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::ops;
use pulp::Simd;
use rayon::iter::{IndexedParallelIterator, IntoParallelRefMutIterator};
use rayon::slice::ParallelSliceMut;

impl CpuKernel for ops::PairedHeadLoss {
    fn run(&self, mut call: Call) {
        let heads = Head::all(self.chunk, &call, self.adapter);
        let objective = Objective { alpha: self.alpha, smoothing: self.smoothing, cap: self.cap };
        let [loss] = call.take_outputs();
        let mut room = Room::new(&heads[0], call.take_scratch());
        let chunks = (0..heads[0].rows).step_by(heads[0].chunk);
        let total = chunks.map(|first| room.losses(&heads, first, |[a, b], target| row_loss(a, b, target, &objective)));
        loss[0] = (total.sum::<f64>() * f64::from(call.scalars.loss_scale)) as f32;
    }
}

impl CpuKernel for ops::PairedHeadLossGrad {
    fn run(&self, mut call: Call) {
        let heads = Head::all(self.chunk, &call, self.adapter.is_some());
        let objective = Objective { alpha: self.alpha, smoothing: self.smoothing, cap: self.cap };
        let scale = call.scalars.loss_scale;
        let slope_scale = scale * call.scalars.gradient_scale;
        let mut outputs = call.take_byte_outputs();
        let loss: &mut [f32] = bytemuck::cast_slice_mut(outputs.next().expect("the loss is a result"));
        let mut gradients = Gradients::take(&mut outputs, heads.each_ref(), &self.requested(), self.accumulate);
        let mut room = Room::new(&heads[0], call.take_scratch());
        let mut total = 0.0;
        for first in (0..heads[0].rows).step_by(heads[0].chunk) {
            let rows = heads[0].chunk.min(heads[0].rows - first);
            total += room.losses(&heads, first, |[a, b], target| {
                let loss = replace_by_gradients(a, b, target, &objective, slope_scale);
                [a, b].into_iter().for_each(|row| heads[0].round(row));
                loss
            });
            for (draw, head) in heads.iter().enumerate() {
                let dlogits = &room.logits[draw][..rows * head.vocab];
                gradients.add(head, draw, first, dlogits, room.products);
            }
        }
        let before = if self.accumulate_loss { loss[0] } else { 0.0 };
        loss[0] = before + (total * f64::from(scale)) as f32;
    }
}

/// Working memory.
struct Room<'a> {
    /// Logits of each draw.
    logits: [&'a mut [f32]; 2],
    losses: &'a mut [f32],
    /// Scratch of products.
    products: &'a mut [f32],
}

impl<'a> Room<'a> {
    fn new(head: &Head, scratch: &'a mut [f32]) -> Self {
        let (logits, rest) = scratch.split_at_mut(head.chunk * head.vocab);
        let [other, losses, products] = head.scratch(rest);
        Self { logits: [logits, other], losses, products }
    }

    /// Computes the logits of the chunk that begins at row `first`, calls `row` with the logits of each row, and
    /// returns the sum of the losses that it returns.
    fn losses(
        &mut self,
        heads: &[Head; 2],
        first: usize,
        row: impl Fn([&mut [f32]; 2], i32) -> f32 + Sync + Send,
    ) -> f64 {
        let [a, b] = &mut self.logits;
        let (a, targets) = heads[0].logits(first, a, self.products);
        let (b, _) = heads[1].logits(first, b, self.products);
        let vocab = heads[0].vocab;
        let losses = &mut self.losses[..targets.len()];
        let pairs = a.par_chunks_exact_mut(vocab).zip(b.par_chunks_exact_mut(vocab));
        let rows = pairs.zip(losses.par_iter_mut()).zip(targets);
        parallel::for_each(2 * targets.len() * vocab, rows, |(((a, b), loss), &target)| *loss = row([a, b], target));
        losses.iter().copied().map(f64::from).sum()
    }
}

/// The quantities that a row's loss depends on.
struct Objective {
    alpha: f32,
    smoothing: f32,
    cap: Option<f32>,
}

impl Objective {
    /// Caps the logits of both draws.
    #[inline(always)]
    fn cap<S: Simd>(&self, simd: S, draws: [&mut [f32]; 2]) {
        if let Some(cap) = self.cap {
            draws.into_iter().for_each(|logits| cap_in_place(simd, logits, cap));
        }
    }

    /// The slope of the cap at a capped logit.
    #[inline(always)]
    fn slope(&self, logit: f32) -> f32 {
        self.cap.map_or(1.0, |cap| slope(logit, cap))
    }

    /// Sets the slopes of the cap at capped logits of both draws.
    #[inline(always)]
    fn slopes(&self, slopes: &mut [[f32; STRETCH]; 2], draws: [&[f32]; 2]) {
        let Some(cap) = self.cap else { return };
        for (slopes, logits) in slopes.iter_mut().zip(draws) {
            slopes.iter_mut().zip(logits).for_each(|(of_cap, &logit)| *of_cap = slope(logit, cap));
        }
    }

    /// Multiplies gradients of capped logits by the slopes.
    #[inline(always)]
    fn pass(&self, slopes: &[[f32; STRETCH]; 2], draws: [&mut [f32]; 2]) {
        if self.cap.is_some() {
            for (slopes, gradients) in slopes.iter().zip(draws) {
                gradients.iter_mut().zip(slopes).for_each(|(gradient, slope)| *gradient *= slope);
            }
        }
    }
}

/// A piece of both draws' probabilities p and q, and of ln p - ln q.
struct Stretch {
    p: [f32; STRETCH],
    q: [f32; STRETCH],
    difference: [f32; STRETCH],
}

impl Stretch {
    const EMPTY: Self = Self { p: [0.0; STRETCH], q: [0.0; STRETCH], difference: [0.0; STRETCH] };

    /// Fills the first elements from logits and the rows' log-sum-exps, and returns them.
    #[inline(always)]
    fn fill<S: Simd>(&mut self, simd: S, [a, b]: [&[f32]; 2], lse: [f32; 2]) -> [&[f32]; 3] {
        let length = a.len();
        for ((p, &a), lse) in [(&mut self.p, &a), (&mut self.q, &b)].into_iter().zip(lse) {
            let p = &mut p[..length];
            p.copy_from_slice(a);
            update!(simd, [p], exp(simd, simd.sub_f32s(p, simd.splat_f32s(lse))));
        }
        for ((difference, &a), &b) in self.difference.iter_mut().zip(a).zip(b) {
            *difference = (a - lse[0]) - (b - lse[1]);
        }
        [&self.p[..length], &self.q[..length], &self.difference[..length]]
    }
}

/// KL(p‖q) and KL(q‖p).
#[inline(always)]
fn divergences<S: Simd>(simd: S, a: &[f32], b: &[f32], lse: [f32; 2]) -> [f32; 2] {
    let (mut stretch, mut sums) = (Stretch::EMPTY, [0.0; 2]);
    for (a, b) in a.chunks(STRETCH).zip(b.chunks(STRETCH)) {
        let [p, q, difference] = stretch.fill(simd, [a, b], lse);
        sums = [sums[0] + dot(simd, p, difference), sums[1] - dot(simd, q, difference)];
    }
    sums
}

/// The loss of a row, from its logits' log-sum-exps and divergences.
#[inline(always)]
fn loss_of<S: Simd>(
    simd: S,
    [a, b]: [&[f32]; 2],
    target: usize,
    objective: &Objective,
    lse: [f32; 2],
    divergences: [f32; 2],
) -> f32 {
    let first = lse[0] - wanted(simd, a, target, objective.smoothing);
    let second = lse[1] - wanted(simd, b, target, objective.smoothing);
    0.5 * (first + second) + 0.5 * objective.alpha * (divergences[0] + divergences[1])
}

vectorized! {
    /// The loss of a row; zero if it has no target.
    fn row_loss<S: Simd>(simd: S, a: &mut [f32], b: &mut [f32], target: i32, objective: &Objective) -> f32 {
        let Ok(target) = usize::try_from(target) else { return 0.0 };
        objective.cap(simd, [&mut *a, &mut *b]);
        let lse = [log_sum_exp(simd, a), log_sum_exp(simd, b)];
        loss_of(simd, [a, b], target, objective, lse, divergences(simd, a, b, lse))
    }

    /// The loss of a row, whose logits are replaced by the gradients of `scale` times the loss: with y the target and d
    /// = ln p - ln q, ½(p - y) + ½α(p(d - KL(p‖q)) + p - q), and with p and q exchanged for the other draw.
    fn replace_by_gradients<S: Simd>(
        simd: S,
        a: &mut [f32],
        b: &mut [f32],
        target: i32,
        objective: &Objective,
        scale: f32,
    ) -> f32 {
        let Ok(target) = usize::try_from(target) else {
            a.fill(0.0);
            b.fill(0.0);
            return 0.0;
        };
        objective.cap(simd, [&mut *a, &mut *b]);
        let lse = [log_sum_exp(simd, a), log_sum_exp(simd, b)];
        let [forth, back] = divergences(simd, a, b, lse);
        let loss = loss_of(simd, [a, b], target, objective, lse, [forth, back]);
        let (half, pull) = (0.5 * scale, 0.5 * scale * objective.alpha);
        let spread = half * objective.smoothing / a.len() as f32;
        let of_target = [a[target], b[target]].map(|logit| half * (1.0 - objective.smoothing) * objective.slope(logit));
        let (mut stretch, mut slopes) = (Stretch::EMPTY, [[1.0; STRETCH]; 2]);
        for (a, b) in a.chunks_mut(STRETCH).zip(b.chunks_mut(STRETCH)) {
            objective.slopes(&mut slopes, [a, b]);
            let [p, q, difference] = stretch.fill(simd, [a, b], lse);
            for (((a, b), (&p, &q)), &d) in a.iter_mut().zip(&mut *b).zip(p.iter().zip(q)).zip(difference) {
                *a = half * p - spread + pull * (p * (d - forth) + (p - q));
                *b = half * q - spread - pull * (q * (d + back) + (p - q));
            }
            objective.pass(&slopes, [a, b]);
        }
        for (logits, of_target) in [a, b].into_iter().zip(of_target) {
            logits[target] -= of_target;
        }
        loss
    }
}
