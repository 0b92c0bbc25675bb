//! The output head with the log-probability of each row's targets. Its products are those of `head_loss.rs`.

use super::CpuKernel;
use super::head_loss::{Head, gradient_of_row, row_loss};
use super::parallel;
use super::tiled::Sums;
use crate::call::Call;
use plimsoll_graph::ops;
use rayon::iter::{IndexedParallelIterator, IntoParallelRefMutIterator};
use rayon::slice::ParallelSliceMut;

impl CpuKernel for ops::HeadLogProbs {
    fn run(&self, mut call: Call) {
        let head = Head::new(self.chunk, &call, [0, 1, 2]);
        let tokens = call.io.inputs[2].columns();
        let [sums] = call.take_outputs();
        let [logits, losses, room] = head.scratch(call.take_scratch());
        // Tokens are added in their order, so that the sums do not depend on the chunks.
        let mut total = 0.0;
        for first in (0..head.rows).step_by(head.chunk) {
            let (logits, targets) = head.logits(first, logits, room);
            let rows = logits.par_chunks_exact_mut(head.vocab).zip(losses.par_iter_mut()).zip(targets);
            parallel::for_each(targets.len() * head.vocab, rows, |((logits, loss), &target)| {
                *loss = row_loss(logits, target, 0.0, self.cap);
            });
            for (token, loss) in (first..).zip(&losses[..targets.len()]) {
                total -= f64::from(*loss);
                if (token + 1) % tokens == 0 {
                    sums[token / tokens] = std::mem::take(&mut total) as f32;
                }
            }
        }
    }
}

impl CpuKernel for ops::HeadLogProbsGrad {
    fn run(&self, mut call: Call) {
        let head = Head::new(self.chunk, &call, [0, 1, 2]);
        let (of_rows, tokens) = (call.f32(3), call.io.inputs[2].columns());
        let mut outputs = call.take_byte_outputs();
        let mut next = || outputs.next().expect("the op's types name this output");
        let extents = [head.rows, head.channels];
        let mut dx = self.input.then(&mut next).map(|dx| Sums::of(dx, call.io.inputs[0].dtype, extents, None, false));
        let mut dweight = self.weight.then(&mut next).map(|dweight| head.weight_gradient(dweight, self.accumulate));
        let [logits, losses, room] = head.scratch(call.take_scratch());
        for first in (0..head.rows).step_by(head.chunk) {
            let (logits, targets) = head.logits(first, logits, room);
            // A loss is a negative log-probability.
            for (token, slope) in (first..).zip(&mut losses[..targets.len()]) {
                *slope = -of_rows[token / tokens];
            }
            let rows = logits.par_chunks_exact_mut(head.vocab).zip(losses.par_iter_mut()).zip(targets);
            parallel::for_each(targets.len() * head.vocab, rows, |((logits, slope), &target)| {
                gradient_of_row(logits, target, 0.0, self.cap, *slope);
                head.round(logits);
            });
            head.backward(first, head.slopes(logits), dx.as_mut(), dweight.as_mut(), room);
        }
    }
}
