//! The linear layer: matrix products, and sums over rows for the bias.

use super::CpuKernel;
use super::half::Float;
use super::matrix::MatrixMut;
use super::parallel;
use super::sums::accumulate;
use super::tiled::{Factor, Sums, any_product};
use super::tiles::{operand, widened};
use crate::call::Call;
use ::half::{bf16, f16};
use plimsoll_graph::ops::{self, WeightLayout};
use plimsoll_graph::{DType, Target};
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};

impl CpuKernel for ops::Linear {
    fn run(&self, mut call: Call) {
        let (x, y) = (call.io.inputs[0], call.io.outputs[0]);
        let (from, to, rows) = (x.columns(), y.columns(), x.rows());
        let weight = weight(&call, 1, self.layout, from, to);
        let bias = self.bias.then(|| call.bytes(2));
        let into = call.take_byte_outputs().next().expect("a product has a result");
        let into = Sums::of(into, y.dtype, [rows, to], bias, false);
        any_product(into, 1.0, Factor::of(&call, 0, rows, from), weight, call.take_scratch(), call.threads);
    }
}

impl CpuKernel for ops::LinearAdd {
    fn run(&self, mut call: Call) {
        let (x, y) = (call.io.inputs[1], call.io.outputs[0]);
        let (from, to, rows) = (x.columns(), y.columns(), x.rows());
        let weight = weight(&call, 2, self.layout, from, to);
        let base = call.bytes_unless_in_output(0);
        let into = call.take_byte_outputs().next().expect("a product has a result");
        if let Some(base) = base {
            let chunk = into.len().div_ceil(call.threads).max(1);
            let parts = into.par_chunks_mut(chunk).zip(base.par_chunks(chunk));
            parallel::for_each(base.len(), parts, |(into, base)| into.copy_from_slice(base));
        }
        let into = Sums::of(into, y.dtype, [rows, to], None, true);
        any_product(into, 1.0, Factor::of(&call, 1, rows, from), weight, call.take_scratch(), call.threads);
    }
}

impl CpuKernel for ops::LinearInputGrad {
    fn run(&self, mut call: Call) {
        let (dy, dx) = (call.io.inputs[0], call.io.outputs[0]);
        let (from, to, rows) = (dx.columns(), dy.columns(), dy.rows());
        let weight = weight(&call, 1, self.layout, from, to).transposed();
        let into = call.take_byte_outputs().next().expect("a product has a result");
        let into = Sums::of(into, dx.dtype, [rows, from], None, false);
        any_product(into, 1.0, Factor::of(&call, 0, rows, to), weight, call.take_scratch(), call.threads);
    }
}

impl CpuKernel for ops::LinearWeightGrad {
    fn run(&self, mut call: Call) {
        let (x, dy) = (call.io.inputs[0], call.io.inputs[1]);
        let (from, to, rows) = (x.columns(), dy.columns(), x.rows());
        let scratch = call.take_scratch();
        let mut outputs = call.take_f32_outputs();
        if self.weight {
            let dweight = outputs.next().expect("the op's types name this output");
            let (x, dy) = (Factor::of(&call, 0, rows, from), Factor::of(&call, 1, rows, to));
            let (extents, a, b) = match self.layout {
                WeightLayout::InOut => ([from, to], x.transposed(), dy),
                WeightLayout::OutIn => ([to, from], dy.transposed(), x),
            };
            let into = MatrixMut::new(dweight, extents[0], extents[1]);
            any_product(Sums::F32 { into, keep: self.accumulate, bias: None }, 1.0, a, b, scratch, call.threads);
        }
        if let Some(dbias) = outputs.next() {
            match dy.dtype {
                DType::F16 => sum_rows::<f16>(dbias, self.accumulate, operand(&call, 1), scratch),
                DType::Bf16 => sum_rows::<bf16>(dbias, self.accumulate, operand(&call, 1), scratch),
                _ => sum_rows::<f32>(dbias, self.accumulate, operand(&call, 1), scratch),
            }
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

/// Elements of a row per widening.
const TILE: usize = 1 << 10;

/// dbias = Σ dy, added to the previous values if `keep`: first the rows of each part, then the parts in order.
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
