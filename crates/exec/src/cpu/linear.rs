//! The linear layer: matrix products, and sums over rows for the bias.

use super::add::accumulate;
use super::blas::blas_in_use;
use super::matrix::{Matrix, MatrixMut};
use super::parallel;
use super::product::product;
use super::transpose::{LINE, transpose};
use crate::call::Call;
use plimsoll_graph::Target;
use plimsoll_graph::ops::{self, TRANSPOSED_COLUMNS, WeightLayout};
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};

pub(super) fn run(op: &ops::Linear, mut call: Call) {
    let bias = op.bias.then(|| call.f32(2));
    let (from, to) = (call.io.inputs[0].columns(), call.io.outputs[0].columns());
    let rows = call.io.inputs[0].rows();
    let (x, weight) = (Matrix::new(call.f32(0), rows, from), call.f32(1));
    let [y] = call.take_outputs();
    if let Some(bias) = bias {
        parallel::for_each(y.len(), y.par_chunks_exact_mut(to), |row| row.copy_from_slice(bias));
    }
    let into = &mut MatrixMut::new(y, rows, to);
    match op.layout {
        WeightLayout::InOut => product(into, op.bias, 1.0, x, Matrix::new(weight, from, to), call.threads),
        WeightLayout::OutIn => {
            let weight = Matrix::new(weight, to, from);
            product_with_transposed(into, op.bias, x, weight, call.take_scratch(), call.threads);
        }
    }
}

pub(super) fn run_input_grad(op: &ops::LinearInputGrad, mut call: Call) {
    let (from, to) = (call.io.outputs[0].columns(), call.io.inputs[0].columns());
    let rows = call.io.inputs[0].rows();
    let (dy, weight) = (Matrix::new(call.f32(0), rows, to), call.f32(1));
    let [dx] = call.take_outputs();
    let into = &mut MatrixMut::new(dx, rows, from);
    match op.layout {
        WeightLayout::InOut => {
            let weight = Matrix::new(weight, from, to);
            product_with_transposed(into, false, dy, weight, call.take_scratch(), call.threads);
        }
        WeightLayout::OutIn => product(into, false, 1.0, dy, Matrix::new(weight, to, from), call.threads),
    }
}

pub(super) fn run_weight_grad(op: &ops::LinearWeightGrad, mut call: Call) {
    let (from, to) = (call.io.inputs[0].columns(), call.io.inputs[1].columns());
    let rows = call.io.inputs[0].rows();
    let (x, dy) = (Matrix::new(call.f32(0), rows, from), Matrix::new(call.f32(1), rows, to));
    let mut outputs = call.take_f32_outputs();
    if op.weight {
        let dweight = outputs.next().expect("the op's types name this output");
        let (mut into, a, b) = match op.layout {
            WeightLayout::InOut => (MatrixMut::new(dweight, from, to), x.transposed(), dy),
            WeightLayout::OutIn => (MatrixMut::new(dweight, to, from), dy.transposed(), x),
        };
        product(&mut into, op.accumulate, 1.0, a, b, call.threads);
    }
    if let Some(dbias) = outputs.next() {
        sum_rows(dbias, op.accumulate, call.f32(1), call.take_scratch());
    }
}

/// into = a weightᵀ, added to what is there if `accumulate`; with room for some of its columns, strips of the weight are
/// transposed first. A BLAS does that by itself.
fn product_with_transposed(
    into: &mut MatrixMut,
    accumulate: bool,
    a: Matrix,
    weight: Matrix,
    room: &mut [f32],
    workers: usize,
) {
    let (height, width) = weight.extents();
    if room.is_empty() || blas_in_use().is_some() {
        return product(into, accumulate, 1.0, a, weight.transposed(), workers);
    }
    for first in (0..width).step_by(TRANSPOSED_COLUMNS) {
        let columns = first..width.min(first + TRANSPOSED_COLUMNS);
        let room = &mut room[..columns.len() * height];
        let parts = room.par_chunks_mut(LINE * height).zip(columns.clone().into_par_iter().step_by(LINE));
        parallel::for_each(columns.len() * height, parts, |(into, first)| transpose(into, weight, first));
        let strip = Matrix::new(room, columns.len(), height);
        product(into, accumulate || first > 0, 1.0, a.columns(columns), strip, workers);
    }
}

/// dbias = Σ dy, added to what is there if `keep`: first the rows of each part, then the parts in order.
fn sum_rows(dbias: &mut [f32], keep: bool, dy: &[f32], sums: &mut [f32]) {
    let columns = dbias.len();
    let part = (dy.len() / columns).div_ceil(Target::CPU_ROW_PARTS) * columns;
    let parts = dy.par_chunks(part).zip(sums.par_chunks_exact_mut(columns));
    parallel::for_each(dy.len(), parts, |(dy, sums)| {
        sums.fill(0.0);
        for row in dy.chunks_exact(columns) {
            accumulate(sums, row);
        }
    });
    if !keep {
        dbias.fill(0.0);
    }
    for sums in sums.chunks_exact(columns).take(dy.len().div_ceil(part)) {
        accumulate(dbias, sums);
    }
}
