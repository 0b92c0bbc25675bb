//! The output head with the log-probability of each row's targets. Its products are those of `head_loss.rs`.

use super::CpuKernel;
use super::head_loss::{Head, gradient_of_row, row_loss};
use super::parallel;
use super::tiled::Sums;
use crate::call::Call;
use plimsoll_graph::ops::{self, grouped_target};
use rayon::iter::{IndexedParallelIterator, IntoParallelRefMutIterator};
use rayon::slice::ParallelSliceMut;

/// The target as the ops of losses read it, and its group: 0 or 1.
fn of_group(target: i32) -> (i32, usize) {
    grouped_target(target).map_or((-1, 0), |(id, is_second)| (id as i32, usize::from(is_second)))
}

impl CpuKernel for ops::HeadLogProbs {
    fn run(&self, mut call: Call) {
        let head = Head::new(self.chunk, &call, [0, 1, 2]);
        let tokens = call.io.inputs[2].columns();
        let [sums] = call.take_outputs();
        let [logits, losses, room] = head.scratch(call.take_scratch());
        let groups = if self.split { 2 } else { 1 };
        // Tokens are added in their order, so that the sums do not depend on the chunks.
        let mut totals = [0.0; 2];
        for first in (0..head.rows).step_by(head.chunk) {
            let (logits, targets) = head.logits(first, logits, room);
            let rows = logits.par_chunks_exact_mut(head.vocab).zip(losses.par_iter_mut()).zip(targets);
            parallel::for_each(targets.len() * head.vocab, rows, |((logits, loss), &target)| {
                *loss = row_loss(logits, of_group(target).0, 0.0, self.cap);
            });
            for ((token, loss), &target) in (first..).zip(&losses[..targets.len()]).zip(targets) {
                totals[of_group(target).1 % groups] -= f64::from(*loss);
                if (token + 1) % tokens == 0 {
                    let of_row = &mut sums[token / tokens * groups..][..groups];
                    of_row.iter_mut().zip(&mut totals).for_each(|(sum, total)| *sum = std::mem::take(total) as f32);
                }
            }
        }
    }
}

impl CpuKernel for ops::HeadLogProbsGrad {
    fn run(&self, mut call: Call) {
        let head = Head::new(self.chunk, &call, [0, 1, 2]);
        let (of_rows, tokens) = (call.f32(3), call.io.inputs[2].columns());
        let groups = if self.split { 2 } else { 1 };
        let mut outputs = call.take_byte_outputs();
        let mut next = || outputs.next().expect("the op's types name this output");
        let extents = [head.rows, head.channels];
        let mut dx = self.input.then(&mut next).map(|dx| Sums::of(dx, call.io.inputs[0].dtype, extents, None, false));
        let mut dweight = self.weight.then(&mut next).map(|dweight| head.weight_gradient(dweight, self.accumulate));
        let [logits, losses, room] = head.scratch(call.take_scratch());
        for first in (0..head.rows).step_by(head.chunk) {
            let (logits, targets) = head.logits(first, logits, room);
            // A loss is a negative log-probability.
            for ((token, slope), &target) in (first..).zip(&mut losses[..targets.len()]).zip(targets) {
                *slope = -of_rows[token / tokens * groups + of_group(target).1 % groups];
            }
            let rows = logits.par_chunks_exact_mut(head.vocab).zip(losses.par_iter_mut()).zip(targets);
            parallel::for_each(targets.len() * head.vocab, rows, |((logits, slope), &target)| {
                gradient_of_row(logits, of_group(target).0, 0.0, self.cap, *slope);
                head.round(logits);
            });
            head.backward(first, head.slopes(logits), dx.as_mut(), dweight.as_mut(), room);
        }
    }
}
