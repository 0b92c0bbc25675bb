//! The output head with cross-entropy: logits of some rows at a time, turned into their gradient where they lie.

use super::half::widen;
use super::math::{exponentials, sum};
use super::matrix::{Matrix, MatrixMut};
use super::parallel;
use super::product::product;
use super::vectorize::vectorized;
use crate::call::{Call, Input};
use plimsoll_graph::DType;
use plimsoll_graph::ops::{self, HEAD_STRIP};
use pulp::Simd;
use rayon::iter::{IndexedParallelIterator, IntoParallelRefMutIterator};
use rayon::slice::ParallelSliceMut;
use std::ops::Range;

pub(super) fn run(op: &ops::HeadLoss, mut call: Call) {
    let head = Head::new(op.chunk, &call, [0, 1, 2]);
    let [loss] = call.take_outputs();
    let [logits, losses, strip] = head.scratch(call.take_scratch());
    let mut total = 0.0;
    for first in (0..head.rows).step_by(head.chunk) {
        let (logits, targets) = head.logits(first, logits, strip);
        let rows = logits.par_chunks_exact_mut(head.vocab).zip(losses.par_iter_mut()).zip(targets);
        parallel::for_each(targets.len() * head.vocab, rows, |((logits, loss), &target)| {
            *loss = row_loss(logits, target, op.smoothing);
        });
        total += losses[..targets.len()].iter().copied().map(f64::from).sum::<f64>();
    }
    loss[0] = (total * f64::from(call.scalars.loss_scale)) as f32;
}

pub(super) fn run_grad(op: &ops::HeadLossGrad, mut call: Call) {
    let head = Head::new(op.chunk, &call, [0, 1, 2]);
    let scale = call.scalars.loss_scale;
    let slope_scale = scale * call.scalars.gradient_scale;
    let mut outputs = call.take_f32_outputs();
    let mut next = || outputs.next().expect("the op's types name this output");
    let (loss, mut dx) = (next(), op.input.then(&mut next));
    let mut dweight = op.weight.then(&mut next).map(|dweight| MatrixMut::new(dweight, head.vocab, head.channels));
    let [logits, losses, strip] = head.scratch(call.take_scratch());
    let mut total = 0.0;
    for first in (0..head.rows).step_by(head.chunk) {
        let (logits, targets) = head.logits(first, logits, strip);
        let rows = logits.par_chunks_exact_mut(head.vocab).zip(losses.par_iter_mut()).zip(targets);
        parallel::for_each(targets.len() * head.vocab, rows, |((logits, loss), &target)| {
            *loss = replace_by_gradient(logits, target, op.smoothing, slope_scale);
        });
        total += losses[..targets.len()].iter().copied().map(f64::from).sum::<f64>();
        let dlogits = Matrix::new(logits, targets.len(), head.vocab);
        if let Some(dx) = &mut dx {
            let dx = &mut dx[first * head.channels..][..targets.len() * head.channels];
            head.input_gradient(logits, &mut MatrixMut::new(dx, targets.len(), head.channels), strip);
        }
        if let Some(dweight) = &mut dweight {
            let (keep, x) = (op.accumulate || first > 0, head.inputs(first, targets.len()));
            product(dweight, keep, 1.0, dlogits.transposed(), x, head.workers);
        }
    }
    let before = if op.accumulate_loss { loss[0] } else { 0.0 };
    loss[0] = before + (total * f64::from(scale)) as f32;
}

/// The operands and extents.
pub(super) struct Head<'a> {
    x: &'a [f32],
    weight: Input<'a>,
    dtype: DType,
    targets: &'a [i32],
    pub(super) rows: usize,
    pub(super) channels: usize,
    pub(super) vocab: usize,
    /// Rows at a time, as scratch was declared for.
    pub(super) chunk: usize,
    pub(super) workers: usize,
}

impl<'a> Head<'a> {
    /// From the places of x, weight and targets among the operands.
    pub(super) fn new(chunk: usize, call: &Call<'a>, [x, weight, targets]: [usize; 3]) -> Self {
        let (rows, ty) = (call.io.inputs[x].rows(), call.io.inputs[weight]);
        let (vocab, channels, dtype) = (ty.shape[0], ty.shape[1], ty.dtype);
        let (x, weight, targets) = (call.f32(x), call.inputs[weight], call.i32(targets));
        Self { x, weight, dtype, targets, rows, channels, vocab, chunk: chunk.min(rows), workers: call.threads }
    }

    /// Room for logits, losses, and a strip of the weight.
    pub(super) fn scratch<'s>(&self, scratch: &'s mut [f32]) -> [&'s mut [f32]; 3] {
        let (logits, rest) = scratch.split_at_mut(self.chunk * self.vocab);
        let (losses, strip) = rest.split_at_mut(self.chunk);
        [logits, losses, strip]
    }

    /// The rows of the weight that are multiplied at a time: all, unless they must be widened first.
    fn strips(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (vocab, strip) = (self.vocab, if self.dtype.is_half() { HEAD_STRIP } else { self.vocab });
        (0..vocab).step_by(strip).map(move |first| first..vocab.min(first + strip))
    }

    /// Some rows of the weight, in `strip` if they must be widened.
    fn weight<'s>(&self, rows: Range<usize>, strip: &'s mut [f32]) -> Matrix<'s>
    where
        'a: 's,
    {
        let elements = rows.start * self.channels..rows.end * self.channels;
        let values = match self.weight {
            Input::Raw(bytes) => {
                let strip = &mut strip[..elements.len()];
                widen(self.dtype, &bytes[2 * elements.start..2 * elements.end], strip);
                &*strip
            }
            Input::F32(values) => &values[elements],
            other => panic!("a weight is not {other:?}"),
        };
        Matrix::new(values, rows.len(), self.channels)
    }

    /// Some rows of x.
    pub(super) fn inputs(&self, first: usize, rows: usize) -> Matrix<'a> {
        Matrix::new(&self.x[first * self.channels..][..rows * self.channels], rows, self.channels)
    }

    /// Computes the logits of the chunk that begins at row `first`; returns them with the rows' targets.
    pub(super) fn logits<'s>(
        &self,
        first: usize,
        scratch: &'s mut [f32],
        strip: &mut [f32],
    ) -> (&'s mut [f32], &'a [i32]) {
        let targets = &self.targets[first..self.rows.min(first + self.chunk)];
        let logits = &mut scratch[..targets.len() * self.vocab];
        let x = self.inputs(first, targets.len());
        for range in self.strips() {
            let into = &mut logits[range.start..];
            let mut into = MatrixMut::strided(into, targets.len(), range.len(), self.vocab);
            product(&mut into, false, 1.0, x, self.weight(range, strip).transposed(), self.workers);
        }
        (logits, targets)
    }

    /// dx = dlogits · weight, for the rows that `dx` has.
    pub(super) fn input_gradient(&self, dlogits: &[f32], dx: &mut MatrixMut, strip: &mut [f32]) {
        for range in self.strips() {
            let dlogits = Matrix::strided(&dlogits[range.start..], dx.row_count(), range.len(), self.vocab);
            product(dx, range.start > 0, 1.0, dlogits, self.weight(range, strip), self.workers);
        }
    }
}

/// (1 - ε) times the target's logit and ε times the mean of all: what a row's log-sum-exp is more than its loss.
#[inline(always)]
pub(super) fn wanted<S: Simd>(simd: S, logits: &[f32], target: usize, smoothing: f32) -> f32 {
    if smoothing == 0.0 {
        return logits[target];
    }
    (1.0 - smoothing) * logits[target] + smoothing * (sum(simd, logits) / logits.len() as f32)
}

vectorized! {
    /// The loss of a row, whose logits are overwritten; zero if it has no target.
    fn row_loss<S: Simd>(simd: S, logits: &mut [f32], target: i32, smoothing: f32) -> f32 {
        let Ok(target) = usize::try_from(target) else { return 0.0 };
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
}
