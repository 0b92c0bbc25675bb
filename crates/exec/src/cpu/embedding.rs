//! Looks up rows of a table, and adds gradients to them.

use super::CpuKernel;
use super::half::Float;
use super::matrix::MatrixMut;
use super::parallel::{self, CHUNK};
use super::tiles::{in_precision, operand};
use crate::call::Call;
use plimsoll_graph::ops;
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator};
use rayon::slice::ParallelSliceMut;

/// Channels of a part of the table's gradient. Parts are ranges of channels, so that each adds all tokens in their
/// order, and a part's row fills whole cache lines.
const PART_CHANNELS: usize = 64;

impl CpuKernel for ops::Embedding {
    fn run(&self, mut call: Call) {
        let (tokens, table) = (call.i32(0), call.bytes(1));
        let (elements, row) = (2 * call.io.outputs[0].elements(), table.len() / call.io.inputs[1].rows());
        for y in call.take_byte_outputs() {
            parallel::for_each(elements, y.par_chunks_exact_mut(row).zip(tokens), |(y, &token)| {
                y.copy_from_slice(&table[token as usize * row..][..row]);
            });
        }
    }
}

impl CpuKernel for ops::EmbeddingGrad {
    fn run(&self, call: Call) {
        in_precision!(call, run_grad(self, call));
    }
}

fn run_grad<E: Float>(op: &ops::EmbeddingGrad, mut call: Call) {
    let (dy, tokens) = (operand::<E>(&call, 0), call.i32(1));
    let channels = call.io.outputs[0].columns();
    let [dtable] = call.take_outputs();
    if !op.accumulate {
        parallel::for_each(dtable.len(), dtable.par_chunks_mut(CHUNK), |part| part.fill(0.0));
    }
    let parts = MatrixMut::new(dtable, op.vocab_size, channels).column_blocks(PART_CHANNELS).collect::<Vec<_>>();
    parallel::for_each(3 * dy.len(), parts.into_par_iter().enumerate(), |(part, mut dtable)| {
        for (dy, &token) in dy.chunks_exact(channels).zip(tokens) {
            let row = dtable.row(token as usize);
            E::accumulate(&dy[part * PART_CHANNELS..][..row.len()], row);
        }
    });
}
