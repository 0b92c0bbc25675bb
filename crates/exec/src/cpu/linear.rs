//! The linear layer: matrix products, and sums over rows for the bias.

use super::add::accumulate;
use super::blas::blas_in_use;
use super::half::Float;
use super::half_product::{Factor, Sums, half_product};
use super::matrix::{Matrix, MatrixMut};
use super::parallel;
use super::product::product;
use super::tiles::{operand, widened};
use super::transpose::{LINE, transpose};
use crate::call::Call;
use ::half::{bf16, f16};
use plimsoll_graph::ops::{self, TRANSPOSED_COLUMNS, WeightLayout};
use plimsoll_graph::{DType, Target};
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};

pub(super) fn run(op: &ops::Linear, mut call: Call) {
    if call.io.inputs[0].dtype.is_half() {
        return run_half(op, call);
    }
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
    if call.io.inputs[0].dtype.is_half() {
        return run_input_grad_half(op, call);
    }
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
    if call.io.inputs[0].dtype.is_half() {
        return run_weight_grad_half(op, call);
    }
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

fn run_half(op: &ops::Linear, mut call: Call) {
    let (x, y) = (call.io.inputs[0], call.io.outputs[0]);
    let (from, to, rows) = (x.columns(), y.columns(), x.rows());
    let weight = weight(&call, 1, op.layout, from, to);
    let bias = op.bias.then(|| call.bytes(2));
    let into = call.take_byte_outputs().next().expect("a product has a result");
    let into = Sums::of(into, y.dtype, [rows, to], bias, false);
    half_product(into, 1.0, Factor::of(&call, 0, rows, from), weight, call.take_scratch(), call.threads);
}

fn run_input_grad_half(op: &ops::LinearInputGrad, mut call: Call) {
    let (dy, dx) = (call.io.inputs[0], call.io.outputs[0]);
    let (from, to, rows) = (dx.columns(), dy.columns(), dy.rows());
    let weight = weight(&call, 1, op.layout, from, to).transposed();
    let into = call.take_byte_outputs().next().expect("a product has a result");
    let into = Sums::of(into, dx.dtype, [rows, from], None, false);
    half_product(into, 1.0, Factor::of(&call, 0, rows, to), weight, call.take_scratch(), call.threads);
}

fn run_weight_grad_half(op: &ops::LinearWeightGrad, mut call: Call) {
    let (x, dy) = (call.io.inputs[0], call.io.inputs[1]);
    let (from, to, rows) = (x.columns(), dy.columns(), x.rows());
    let scratch = call.take_scratch();
    let mut outputs = call.take_f32_outputs();
    if op.weight {
        let dweight = outputs.next().expect("the op's types name this output");
        let (x, dy) = (Factor::of(&call, 0, rows, from), Factor::of(&call, 1, rows, to));
        let (extents, a, b) = match op.layout {
            WeightLayout::InOut => ([from, to], x.transposed(), dy),
            WeightLayout::OutIn => ([to, from], dy.transposed(), x),
        };
        let into = Sums::F32 { into: MatrixMut::new(dweight, extents[0], extents[1]), keep: op.accumulate };
        half_product(into, 1.0, a, b, scratch, call.threads);
    }
    if let Some(dbias) = outputs.next() {
        match dy.dtype {
            DType::F16 => sum_rows::<f16>(dbias, op.accumulate, operand(&call, 1), scratch),
            _ => sum_rows::<bf16>(dbias, op.accumulate, operand(&call, 1), scratch),
        }
    }
}

/// The weight as (from, to).
fn weight<'a>(call: &Call<'a>, index: usize, layout: WeightLayout, from: usize, to: usize) -> Factor<'a> {
    match layout {
        WeightLayout::InOut => Factor::of(call, index, from, to),
        WeightLayout::OutIn => Factor::of(call, index, to, from).transposed(),
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

/// Elements of a row that are widened at a time.
const TILE: usize = 1 << 10;

/// dbias = Σ dy, added to what is there if `keep`: first the rows of each part, then the parts in order.
fn sum_rows<E: Float>(dbias: &mut [f32], keep: bool, dy: &[E], sums: &mut [f32]) {
    let columns = dbias.len();
    let part = (dy.len() / columns).div_ceil(Target::CPU_ROW_PARTS) * columns;
    let parts = dy.par_chunks(part).zip(sums.par_chunks_exact_mut(columns));
    parallel::for_each(dy.len(), parts, |(dy, sums)| {
        sums.fill(0.0);
        for row in dy.chunks_exact(columns) {
            let mut tile = [0.0; TILE];
            for (sums, row) in sums.chunks_mut(TILE).zip(row.chunks(TILE)) {
                accumulate(sums, widened(row, &mut tile));
            }
        }
    });
    if !keep {
        dbias.fill(0.0);
    }
    for sums in sums.chunks_exact(columns).take(dy.len().div_ceil(part)) {
        accumulate(dbias, sums);
    }
}
