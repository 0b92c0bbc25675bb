//! The output head with cross-entropy: logits of some rows at a time, turned into their gradient where they lie.

use super::gemm::{Matrix, MatrixMut, product};
use super::math::exponentials;
use super::parallel;
use super::vectorize::vectorized;
use crate::call::Call;
use graph::ops;
use rayon::iter::{IndexedParallelIterator, IntoParallelRefMutIterator};
use rayon::slice::ParallelSliceMut;

pub(super) fn run(op: &ops::HeadLoss, mut call: Call) {
    let head = Head::new(op.chunk, &call);
    let [loss] = call.take_outputs();
    let (logits, losses) = call.take_scratch().split_at_mut(head.chunk * head.vocab);
    let mut total = 0.0;
    for first in (0..head.rows).step_by(head.chunk) {
        let (logits, targets) = head.logits(first, logits);
        let rows = logits.par_chunks_exact_mut(head.vocab).zip(losses.par_iter_mut()).zip(targets);
        parallel::for_each(targets.len() * head.vocab, rows, |((logits, loss), &target)| {
            *loss = row_loss(logits, target)
        });
        total += losses[..targets.len()].iter().copied().map(f64::from).sum::<f64>();
    }
    loss[0] = (total * f64::from(call.scalars.loss_scale)) as f32;
}

pub(super) fn run_grad(op: &ops::HeadLossGrad, mut call: Call) {
    let head = Head::new(op.chunk, &call);
    let scale = call.scalars.loss_scale;
    let [loss, dx, dweight] = call.take_outputs();
    let mut dweight = MatrixMut::new(dweight, head.vocab, head.channels);
    let (logits, losses) = call.take_scratch().split_at_mut(head.chunk * head.vocab);
    let mut total = 0.0;
    for first in (0..head.rows).step_by(head.chunk) {
        let (logits, targets) = head.logits(first, logits);
        let rows = logits.par_chunks_exact_mut(head.vocab).zip(losses.par_iter_mut()).zip(targets);
        parallel::for_each(targets.len() * head.vocab, rows, |((logits, loss), &target)| {
            *loss = replace_by_gradient(logits, target, scale);
        });
        total += losses[..targets.len()].iter().copied().map(f64::from).sum::<f64>();
        let dlogits = Matrix::new(logits, targets.len(), head.vocab);
        let dx = &mut dx[first * head.channels..][..targets.len() * head.channels];
        product(&mut MatrixMut::new(dx, targets.len(), head.channels), false, 1.0, dlogits, head.weight, head.workers);
        let (keep, x) = (op.accumulate || first > 0, head.inputs(first, targets.len()));
        product(&mut dweight, keep, 1.0, dlogits.transposed(), x, head.workers);
    }
    let before = if op.accumulate_loss { loss[0] } else { 0.0 };
    loss[0] = before + (total * f64::from(scale)) as f32;
}

/// The operands and extents.
struct Head<'a> {
    x: &'a [f32],
    weight: Matrix<'a>,
    targets: &'a [i32],
    rows: usize,
    channels: usize,
    vocab: usize,
    /// Rows at a time, as scratch was declared for.
    chunk: usize,
    workers: usize,
}

impl<'a> Head<'a> {
    fn new(chunk: usize, call: &Call<'a>) -> Self {
        let (vocab, channels) = (call.io.inputs[1].shape[0], call.io.inputs[1].shape[1]);
        let rows = call.io.inputs[0].rows();
        let weight = Matrix::new(call.f32(1), vocab, channels);
        let (x, targets) = (call.f32(0), call.i32(2));
        Self { x, weight, targets, rows, channels, vocab, chunk: chunk.min(rows), workers: call.threads }
    }

    fn inputs(&self, first: usize, rows: usize) -> Matrix<'a> {
        Matrix::new(&self.x[first * self.channels..][..rows * self.channels], rows, self.channels)
    }

    /// Computes the logits of the chunk that begins at row `first`; returns them with the rows' targets.
    fn logits<'s>(&self, first: usize, scratch: &'s mut [f32]) -> (&'s mut [f32], &'a [i32]) {
        let targets = &self.targets[first..self.rows.min(first + self.chunk)];
        let logits = &mut scratch[..targets.len() * self.vocab];
        let mut into = MatrixMut::new(logits, targets.len(), self.vocab);
        product(&mut into, false, 1.0, self.inputs(first, targets.len()), self.weight.transposed(), self.workers);
        (logits, targets)
    }
}

vectorized! {
    /// The loss of a row, whose logits are overwritten; zero if it has no target.
    fn row_loss<S: Simd>(simd: S, logits: &mut [f32], target: i32) -> f32 {
        let Ok(target) = usize::try_from(target) else { return 0.0 };
        let wanted = logits[target];
        let [largest, sum] = exponentials(simd, logits);
        largest + sum.ln() - wanted
    }

    /// The loss of a row, whose logits are replaced by the gradient of `scale` times the loss.
    fn replace_by_gradient<S: Simd>(simd: S, logits: &mut [f32], target: i32, scale: f32) -> f32 {
        let Ok(target) = usize::try_from(target) else {
            logits.fill(0.0);
            return 0.0;
        };
        let wanted = logits[target];
        let [largest, sum] = exponentials(simd, logits);
        let factor = scale / sum;
        for logit in &mut *logits {
            *logit *= factor;
        }
        logits[target] -= scale;
        largest + sum.ln() - wanted
    }
}
