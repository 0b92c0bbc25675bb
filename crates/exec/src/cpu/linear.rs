//! The linear layer: matrix products, and sums over rows for the bias.

use super::add::accumulate;
use super::gemm::{Matrix, MatrixMut, product};
use super::parallel;
use crate::call::Call;
use graph::ops::{self, ROW_PARTS, WeightLayout};
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};

pub(super) fn run(op: &ops::Linear, mut call: Call) {
    let bias = op.bias.then(|| call.f32(2));
    let (from, to) = (call.io.inputs[0].columns(), call.io.outputs[0].columns());
    let rows = call.io.inputs[0].rows();
    let weight = weight_matrix(call.f32(1), op.layout, from, to);
    let x = Matrix::new(call.f32(0), rows, from);
    let [y] = call.take_outputs();
    if let Some(bias) = bias {
        parallel::for_each(y.len(), y.par_chunks_exact_mut(to), |row| row.copy_from_slice(bias));
    }
    product(&mut MatrixMut::new(y, rows, to), op.bias, 1.0, x, weight, call.threads);
}

pub(super) fn run_input_grad(op: &ops::LinearInputGrad, mut call: Call) {
    let (from, to) = (call.io.outputs[0].columns(), call.io.inputs[0].columns());
    let rows = call.io.inputs[0].rows();
    let dy = Matrix::new(call.f32(0), rows, to);
    let weight = weight_matrix(call.f32(1), op.layout, from, to);
    let [dx] = call.take_outputs();
    product(&mut MatrixMut::new(dx, rows, from), false, 1.0, dy, weight.transposed(), call.threads);
}

pub(super) fn run_weight_grad(op: &ops::LinearWeightGrad, mut call: Call) {
    let (from, to) = (call.io.inputs[0].columns(), call.io.inputs[1].columns());
    let rows = call.io.inputs[0].rows();
    let (x, dy) = (Matrix::new(call.f32(0), rows, from), Matrix::new(call.f32(1), rows, to));
    let mut outputs = call.take_f32_outputs();
    let dweight = outputs.next().expect("a gradient has outputs");
    match op.layout {
        WeightLayout::InOut => {
            product(&mut MatrixMut::new(dweight, from, to), op.accumulate, 1.0, x.transposed(), dy, call.threads);
        }
        WeightLayout::OutIn => {
            product(&mut MatrixMut::new(dweight, to, from), op.accumulate, 1.0, dy.transposed(), x, call.threads);
        }
    }
    if let Some(dbias) = outputs.next() {
        sum_rows(dbias, op.accumulate, call.f32(1), call.take_scratch());
    }
}

/// A weight as the (in, out) matrix that rows are multiplied by.
fn weight_matrix(weight: &[f32], layout: WeightLayout, from: usize, to: usize) -> Matrix<'_> {
    match layout {
        WeightLayout::InOut => Matrix::new(weight, from, to),
        WeightLayout::OutIn => Matrix::new(weight, to, from).transposed(),
    }
}

/// dbias = Σ dy, added to what is there if `keep`: first the rows of each part, then the parts in order.
fn sum_rows(dbias: &mut [f32], keep: bool, dy: &[f32], sums: &mut [f32]) {
    let columns = dbias.len();
    let part = (dy.len() / columns).div_ceil(ROW_PARTS) * columns;
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
