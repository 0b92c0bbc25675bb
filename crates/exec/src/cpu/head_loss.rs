//! The output head with cross-entropy: a chunk of rows at a time, whose logits are replaced by their gradient.

use super::CpuKernel;
use super::half::Float;
use super::math::{exp, exponentials, maximum, sum, update};
use super::matrix::{Matrix, MatrixMut};
use super::parallel;
use super::soft_cap::cap_in_place;
use super::tiled::{Factor, Sums, any_product, instructions};
use super::vectorize::vectorized;
use crate::call::Call;
use ::half::bf16;
use plimsoll_graph::DType;
use plimsoll_graph::ops;
use pulp::Simd;
use rayon::iter::{IndexedParallelIterator, IntoParallelRefMutIterator};
use rayon::slice::ParallelSliceMut;

impl CpuKernel for ops::HeadLoss {
    fn run(&self, mut call: Call) {
        let head = Head::new(self.chunk, &call, [0, 1, 2]);
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
        let head = Head::new(self.chunk, &call, [0, 1, 2]);
        let scale = call.scalars.loss_scale;
        let slope_scale = scale * call.scalars.gradient_scale;
        let mut outputs = call.take_byte_outputs();
        let mut next = || outputs.next().expect("the op's types name this output");
        let loss: &mut [f32] = bytemuck::cast_slice_mut(next());
        let extents = [head.rows, head.channels];
        let mut dx = self.input.then(&mut next).map(|dx| Sums::of(dx, call.io.inputs[0].dtype, extents, None, false));
        let mut dweight = self.weight.then(&mut next).map(|dweight| head.weight_gradient(dweight, self.accumulate));
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
            head.backward(first, head.slopes(logits), dx.as_mut(), dweight.as_mut(), room);
        }
        let before = if self.accumulate_loss { loss[0] } else { 0.0 };
        loss[0] = before + (total * f64::from(scale)) as f32;
    }
}

/// The operands and extents.
pub(super) struct Head<'a> {
    x: Factor<'a>,
    weight: Factor<'a>,
    targets: &'a [i32],
    pub(super) rows: usize,
    pub(super) channels: usize,
    pub(super) vocab: usize,
    /// Rows of a chunk, which the scratch is sized for.
    pub(super) chunk: usize,
    /// Whether gradients of logits are multiplied in half precision.
    rounds: bool,
    workers: usize,
}

impl<'a> Head<'a> {
    /// Takes the indices of x, weight and targets among the operands.
    pub(super) fn new(chunk: usize, call: &Call<'a>, [x, weight, targets]: [usize; 3]) -> Self {
        let (rows, ty) = (call.io.inputs[x].rows(), call.io.inputs[weight]);
        let (vocab, channels) = (ty.shape[0], ty.shape[1]);
        let (x, weight) = (Factor::of(call, x, rows, channels), Factor::of(call, weight, vocab, channels));
        let (targets, workers) = (call.i32(targets), call.threads);
        let rounds = ty.dtype == DType::Bf16 && instructions().multiplies_bf16();
        Self { x, weight, targets, rows, channels, vocab, chunk: chunk.min(rows), rounds, workers }
    }

    /// Memory for logits, losses, and the scratch of products.
    pub(super) fn scratch<'s>(&self, scratch: &'s mut [f32]) -> [&'s mut [f32]; 3] {
        let (logits, rest) = scratch.split_at_mut(self.chunk * self.vocab);
        let (losses, room) = rest.split_at_mut(self.chunk);
        [logits, losses, room]
    }

    /// Computes the logits of the chunk that begins at row `first`; returns them with the rows' targets.
    pub(super) fn logits<'s>(
        &self,
        first: usize,
        scratch: &'s mut [f32],
        room: &mut [f32],
    ) -> (&'s mut [f32], &'a [i32]) {
        let rows = first..self.rows.min(first + self.chunk);
        let logits = &mut scratch[..rows.len() * self.vocab];
        let into = Sums::F32 { into: MatrixMut::new(logits, rows.len(), self.vocab), keep: false, bias: None };
        any_product(into, 1.0, self.x.rows(rows.clone()), self.weight.transposed(), room, self.workers);
        (logits, &self.targets[rows])
    }

    /// Destination of the weight's gradient, which is written or added.
    pub(super) fn weight_gradient<'s>(&self, dweight: &'s mut [u8], keep: bool) -> Sums<'s> {
        Sums::of(dweight, DType::F32, [self.vocab, self.channels], None, keep)
    }

    /// Rounds the gradient of a row of logits in place, if products take it in half precision: both products then read
    /// it at twice the speed. Overwrites the rest of the row.
    pub(super) fn round(&self, row: &mut [f32]) {
        if self.rounds {
            round_in_front(row);
        }
    }

    /// Gradients of logits after [`round`](Self::round) of each row.
    pub(super) fn slopes<'s>(&self, dlogits: &'s [f32]) -> Factor<'s> {
        let (rows, vocab) = (dlogits.len() / self.vocab, self.vocab);
        match self.rounds {
            true => Matrix::<bf16>::strided(bytemuck::cast_slice(dlogits), rows, vocab, 2 * vocab).into(),
            false => Matrix::new(dlogits, rows, vocab).into(),
        }
    }

    /// From the gradients of the chunk of logits that begins at row `first`: dx = dlogits · weight of these rows, and
    /// dweight = dlogitsᵀ · x, which the next chunk adds to.
    pub(super) fn backward(
        &self,
        first: usize,
        dlogits: Factor,
        dx: Option<&mut Sums>,
        dweight: Option<&mut Sums>,
        room: &mut [f32],
    ) {
        let rows = first..self.rows.min(first + self.chunk);
        if let Some(dx) = dx {
            let into = dx.part(rows.clone(), 0..self.channels);
            any_product(into, 1.0, dlogits, self.weight, room, self.workers);
        }
        if let Some(dweight) = dweight {
            let into = dweight.part(0..self.vocab, 0..self.channels);
            any_product(into, 1.0, dlogits.transposed(), self.x.rows(rows), room, self.workers);
            dweight.keep();
        }
    }
}

/// Logits of a row that are processed together, so that they stay in the first-level cache between passes.
pub(super) const STRETCH: usize = 1 << 10;

/// Elements of a row per rounding.
const ROUNDED: usize = 1 << 10;

/// Rounds a row into the first half of its memory.
fn round_in_front(row: &mut [f32]) {
    for first in (0..row.len()).step_by(ROUNDED) {
        let mut tile = [bf16::ZERO; ROUNDED];
        let values = &row[first..row.len().min(first + ROUNDED)];
        let tile = &mut tile[..values.len()];
        bf16::round(values, tile);
        bytemuck::cast_slice_mut::<f32, bf16>(row)[first..][..tile.len()].copy_from_slice(tile);
    }
}

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
