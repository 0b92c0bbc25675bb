//! The output head with the log-probability of each row's targets. Its products are those of `head.rs`.

use super::CpuKernel;
use super::head::{Gradients, Head};
use super::head_loss::{gradient_of_row, row_loss};
use super::parallel;
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
        let [head] = Head::all(self.chunk, &call, self.adapter);
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
        let [head] = Head::all(self.chunk, &call, self.adapter.is_some());
        let of_rows = call.f32(if self.adapter.is_some() { 5 } else { 3 });
        let (tokens, groups) = (call.io.inputs[2].columns(), if self.split { 2 } else { 1 });
        let mut gradients = Gradients::take(&mut call.take_byte_outputs(), [&head], &self.requested(), self.accumulate);
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
            gradients.add(&head, 0, first, logits, room);
        }
    }
}
