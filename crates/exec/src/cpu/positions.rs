//! Learned position embeddings: rows of a table added to rows of tokens.

use super::add::{accumulate, sum};
use super::parallel;
use crate::call::Call;
use plimsoll_graph::ops;
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};

pub(super) fn run(op: &ops::Positions, mut call: Call) {
    let (x, table) = (call.f32_unless_in_output(0), call.f32(1));
    let (time, channels) = (call.io.outputs[0].shape[1], call.io.outputs[0].shape[2]);
    let start = if op.offset { call.scalars.position as usize } else { 0 };
    let table = &table[start * channels..(start + time) * channels];
    let [y] = call.take_outputs();
    let elements = 3 * y.len();
    let rows = y.par_chunks_exact_mut(channels).enumerate();
    let position = |row: usize| &table[row % time * channels..][..channels];
    match x {
        Some(x) => parallel::for_each(elements, rows.zip(x.par_chunks_exact(channels)), |((row, y), x)| {
            sum(y, x, position(row));
        }),
        None => parallel::for_each(elements, rows, |(row, y)| accumulate(y, position(row))),
    }
}

pub(super) fn run_grad(op: &ops::PositionsGrad, mut call: Call) {
    let dy = call.f32(0);
    let (time, channels) = (call.io.inputs[0].shape[1], call.io.inputs[0].shape[2]);
    let [dtable] = call.take_outputs();
    let rows = dtable.par_chunks_exact_mut(channels).enumerate();
    parallel::for_each(dy.len(), rows, |(position, row)| {
        if !op.accumulate {
            row.fill(0.0);
        }
        if position < time {
            for sample in dy.chunks_exact(time * channels) {
                accumulate(row, &sample[position * channels..][..channels]);
            }
        }
    });
}
