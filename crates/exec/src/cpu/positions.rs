//! Learned position embeddings: rows of a table added to rows of tokens.

use super::CpuKernel;
use super::add::sum_of;
use super::half::Float;
use super::parallel;
use super::tiles::{in_precision, in_stack_tiles, operand, operand_unless_in_output, results};
use crate::call::Call;
use plimsoll_graph::{TensorType, ops};
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator};
use rayon::slice::ParallelSliceMut;

impl CpuKernel for ops::Positions {
    fn run(&self, call: Call) {
        in_precision!(call, run(self, call));
    }
}

fn run<E: Float>(op: &ops::Positions, mut call: Call) {
    let (x, table) = (operand_unless_in_output::<E>(&call, 0), operand::<E>(&call, 1));
    let [time, channels] = rows_of_table(op.same, call.io.outputs[0]);
    let start = if op.offset { call.scalars.position as usize } else { 0 };
    let table = &table[start * channels..(start + time) * channels];
    let [y] = results(&mut call);
    let elements = 3 * y.len();
    let chunks = parallel::chunks_of_samples(y, table.len());
    parallel::for_each(elements, chunks.into_par_iter(), |(sample, first, y)| {
        let x = x.map(|x| &x[sample * table.len() + first..][..y.len()]);
        let table = &table[first..][..y.len()];
        in_stack_tiles([y], [x, Some(table)], |[y], operands| sum_of(y, operands));
    });
}

/// Number of rows of the table that tokens have, and of channels. If all have the same row, each token counts as a
/// sample.
fn rows_of_table(same: bool, x: &TensorType) -> [usize; 2] {
    [if same { 1 } else { x.shape[1] }, x.shape[2]]
}

impl CpuKernel for ops::PositionsGrad {
    fn run(&self, call: Call) {
        in_precision!(call, run_grad(self, call));
    }
}

fn run_grad<E: Float>(op: &ops::PositionsGrad, mut call: Call) {
    let dy = operand::<E>(&call, 0);
    let [time, channels] = rows_of_table(op.same, call.io.inputs[0]);
    let [dtable] = call.take_outputs();
    let rows = dtable.par_chunks_exact_mut(channels).enumerate();
    parallel::for_each(dy.len(), rows, |(position, row)| {
        if !op.accumulate {
            row.fill(0.0);
        }
        if position < time {
            for sample in dy.chunks_exact(time * channels) {
                E::accumulate(&sample[position * channels..][..channels], row);
            }
        }
    });
}
