//! The products of output heads: logits, a chunk of rows at a time, and the gradients of their factors.
//! Not here: losses and their slopes (`head_loss.rs`, `paired_head_loss.rs`, `head_log_probs.rs`).

use super::half::Float;
use super::matrix::{Matrix, MatrixMut};
use super::tiled::{Factor, Sums, any_product, instructions};
use crate::call::Call;
use ::half::bf16;
use plimsoll_graph::DType;
use plimsoll_graph::ops::HeadGradients;
use std::array;

/// The operands and extents of a draw.
pub(super) struct Head<'a> {
    x: Factor<'a>,
    weight: Factor<'a>,
    /// The operands t and B of an adapter.
    adapter: Option<[Factor<'a>; 2]>,
    targets: &'a [i32],
    pub(super) rows: usize,
    pub(super) vocab: usize,
    /// Columns of x, and of t; zero without an adapter.
    columns: [usize; 2],
    /// Rows of a chunk, which the scratch is sized for.
    pub(super) chunk: usize,
    /// The precision of x and t.
    dtype: DType,
    /// Whether gradients of logits are multiplied in half precision.
    rounds: bool,
    workers: usize,
}

impl<'a> Head<'a> {
    /// The heads of all draws, from a call's operands in the order of `graph/src/ops/head.rs`.
    pub(super) fn all<const DRAWS: usize>(chunk: usize, call: &Call<'a>, has_adapter: bool) -> [Self; DRAWS] {
        let (rows, weight) = (call.io.inputs[0].rows(), call.io.inputs[DRAWS]);
        let (vocab, channels) = (weight.shape[0], weight.shape[1]);
        let up = 2 * DRAWS + 2;
        let rank = if has_adapter { call.io.inputs[up].columns() } else { 0 };
        array::from_fn(|draw| {
            let adapter = || {
                let low = Factor::of(call, DRAWS + 2 + draw, rows, rank);
                [low, Factor::of(call, up, vocab, rank)]
            };
            Self {
                x: Factor::of(call, draw, rows, channels),
                weight: Factor::of(call, DRAWS, vocab, channels),
                adapter: has_adapter.then(adapter),
                targets: call.i32(DRAWS + 1),
                rows,
                vocab,
                columns: [channels, rank],
                chunk: chunk.min(rows),
                dtype: weight.dtype,
                rounds: weight.dtype == DType::Bf16 && instructions().multiplies_bf16(),
                workers: call.threads,
            }
        })
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
        let mut product = |x: Factor, table: Factor, keep| {
            let into = Sums::F32 { into: MatrixMut::new(logits, rows.len(), self.vocab), keep, bias: None };
            any_product(into, 1.0, x.rows(rows.clone()), table.transposed(), room, self.workers);
        };
        product(self.x, self.weight, false);
        if let Some([low, up]) = self.adapter {
            product(low, up, true);
        }
        (logits, &self.targets[rows])
    }

    /// Rounds the gradient of a row of logits in place, if products take it in half precision: all products then read
    /// it at twice the speed. Overwrites the rest of the row.
    pub(super) fn round(&self, row: &mut [f32]) {
        if self.rounds {
            round_in_front(row);
        }
    }

    /// Gradients of logits after [`round`](Self::round) of each row.
    fn slopes<'s>(&self, dlogits: &'s [f32]) -> Factor<'s> {
        let (rows, vocab) = (dlogits.len() / self.vocab, self.vocab);
        match self.rounds {
            true => Matrix::<bf16>::strided(bytemuck::cast_slice(dlogits), rows, vocab, 2 * vocab).into(),
            false => Matrix::new(dlogits, rows, vocab).into(),
        }
    }
}

/// The destinations of gradients, in the order of an op's results.
pub(super) struct Gradients<'o, const DRAWS: usize> {
    x: [Option<Sums<'o>>; DRAWS],
    low: [Option<Sums<'o>>; DRAWS],
    weight: Option<Sums<'o>>,
    up: Option<Sums<'o>>,
}

impl<'o, const DRAWS: usize> Gradients<'o, DRAWS> {
    /// Takes the results of a call from the next one on. Those of the weights are added to if `accumulate`.
    pub(super) fn take(
        outputs: &mut impl Iterator<Item = &'o mut [u8]>,
        heads: [&Head; DRAWS],
        requested: &HeadGradients,
        accumulate: bool,
    ) -> Self {
        let Head { rows, vocab, columns: [channels, rank], dtype, .. } = *heads[0];
        let mut take = |requested: bool, dtype, extents, keep| {
            requested
                .then(|| Sums::of(outputs.next().expect("the op's types name this output"), dtype, extents, None, keep))
        };
        let x = array::from_fn(|_| take(requested.input, dtype, [rows, channels], false));
        let low = array::from_fn(|_| take(requested.low(), dtype, [rows, rank], false));
        let weight = take(requested.weight, DType::F32, [vocab, channels], accumulate);
        let up = take(requested.up(), DType::F32, [vocab, rank], accumulate);
        Self { x, low, weight, up }
    }

    /// From the gradients of a draw's chunk of logits that begins at row `first`: dx = dlogits · W of these rows, and
    /// dW = dlogitsᵀ · x, which the next chunk adds to; with an adapter also those of t and B.
    pub(super) fn add(&mut self, head: &Head, draw: usize, first: usize, dlogits: &[f32], room: &mut [f32]) {
        let (rows, dlogits) = (first..head.rows.min(first + head.chunk), head.slopes(dlogits));
        let mut add = |of_rows: &mut Option<Sums>, of_table: &mut Option<Sums>, x: Factor, table: Factor, columns| {
            if let Some(dx) = of_rows {
                let into = dx.part(rows.clone(), 0..columns);
                any_product(into, 1.0, dlogits, table, room, head.workers);
            }
            if let Some(dtable) = of_table {
                let into = dtable.part(0..head.vocab, 0..columns);
                any_product(into, 1.0, dlogits.transposed(), x.rows(rows.clone()), room, head.workers);
                dtable.keep();
            }
        };
        let [channels, rank] = head.columns;
        add(&mut self.x[draw], &mut self.weight, head.x, head.weight, channels);
        if let Some([low, up]) = head.adapter {
            add(&mut self.low[draw], &mut self.up, low, up, rank);
        }
    }
}

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
