//! The linear layers of experts: a product for each expert, by all workers, and sums over its rows for the bias.

use super::CpuKernel;
use super::half::Float;
use super::matrix::MatrixMut;
use super::parallel;
use super::quantized_linear::weights;
use super::tiled::{Factor, Sums, any_product};
use super::tiles::{in_precision, operand};
use crate::call::Call;
use plimsoll_graph::ops::{self, MOST_EXPERT_ROWS, WeightLayout};
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};
use std::ops::Range;

impl CpuKernel for ops::ExpertLinear {
    fn run(&self, call: Call) {
        let bias = self.bias.then(|| call.bytes(3));
        let (from, to) = (call.io.inputs[0].columns(), call.io.outputs[0].columns());
        let weight = |expert| weight(&call, self.layout, expert, [from, to]);
        let experts = (0..experts_of(call.i32(2))).map(weight).collect::<Vec<_>>();
        products(call, &experts, 2, bias);
    }
}

impl CpuKernel for ops::QuantizedExpertLinear {
    fn run(&self, call: Call) {
        let bounds = 2 + self.codes.scale_count();
        let bias = self.bias.then(|| call.bytes(bounds + 1));
        let turned = self.layout == WeightLayout::OutIn;
        let experts = weights(&call, self.codes).map(|weight| if turned { weight.transposed() } else { weight });
        let experts = experts.collect::<Vec<_>>();
        products(call, &experts, bounds, bias);
    }
}

impl CpuKernel for ops::QuantizedExpertLinearInputGrad {
    fn run(&self, call: Call) {
        let turned = self.layout == WeightLayout::InOut;
        let experts = weights(&call, self.codes).map(|weight| if turned { weight.transposed() } else { weight });
        let experts = experts.collect::<Vec<_>>();
        products(call, &experts, 2 + self.codes.scale_count(), None);
    }
}

impl CpuKernel for ops::ExpertLinearInputGrad {
    fn run(&self, call: Call) {
        let (from, to) = (call.io.outputs[0].columns(), call.io.inputs[0].columns());
        let weight = |expert| weight(&call, self.layout, expert, [from, to]).transposed();
        let experts = (0..experts_of(call.i32(2))).map(weight).collect::<Vec<_>>();
        products(call, &experts, 2, None);
    }
}

impl CpuKernel for ops::ExpertLinearWeightGrad {
    fn run(&self, mut call: Call) {
        let bounds = call.i32(2);
        let (from, to, rows) = (call.io.inputs[0].columns(), call.io.inputs[1].columns(), call.io.inputs[0].rows());
        let scratch = call.take_scratch();
        let mut outputs = call.take_f32_outputs();
        if self.weight {
            let dweight = outputs.next().expect("the op's types name this output");
            let (x, dy) = (Factor::of(&call, 0, rows, from), Factor::of(&call, 1, rows, to));
            for (rows, dweight) in rows_of_experts(bounds).zip(dweight.chunks_exact_mut(from * to)) {
                if rows.is_empty() {
                    if !self.accumulate {
                        dweight.fill(0.0);
                    }
                    continue;
                }
                let (x, dy) = (x.rows(rows.clone()), dy.rows(rows));
                let ([height, width], a, b) = match self.layout {
                    WeightLayout::InOut => ([from, to], x.transposed(), dy),
                    WeightLayout::OutIn => ([to, from], dy.transposed(), x),
                };
                let into =
                    Sums::F32 { into: MatrixMut::new(dweight, height, width), keep: self.accumulate, bias: None };
                any_product(into, 1.0, a, b, scratch, call.threads);
            }
        }
        if let Some(dbias) = outputs.next() {
            in_precision!(call, sum_rows(&call, dbias, self.accumulate));
        }
    }
}

fn experts_of(bounds: &[i32]) -> usize {
    bounds.len() - 1
}

/// The rows of each expert.
fn rows_of_experts(bounds: &[i32]) -> impl Iterator<Item = Range<usize>> {
    bounds.windows(2).map(|two| two[0] as usize..two[1] as usize)
}

/// The weight of an expert, operand 1, as (from, to).
fn weight<'a>(call: &Call<'a>, layout: WeightLayout, expert: usize, [from, to]: [usize; 2]) -> Factor<'a> {
    let experts = experts_of(call.i32(2));
    let of = |height: usize, width: usize| {
        Factor::of(call, 1, experts * height, width).rows(expert * height..(expert + 1) * height)
    };
    match layout {
        WeightLayout::InOut => of(from, to),
        WeightLayout::OutIn => of(to, from).transposed(),
    }
}

/// The products of each expert's rows, operand 0, with its matrix. `bounds`: the operand that has the rows' bounds.
fn products(mut call: Call, experts: &[Factor], bounds: usize, bias: Option<&[u8]>) {
    let (x, y, bounds) = (call.io.inputs[0], call.io.outputs[0], call.i32(bounds));
    let (from, to) = (x.columns(), y.columns());
    let row_bytes = to * y.dtype.size_bytes() as usize;
    let x = Factor::of(&call, 0, x.rows(), from);
    let scratch = call.take_scratch();
    let into = call.take_byte_outputs().next().expect("a product has a result");
    for (expert, rows) in rows_of_experts(bounds).enumerate() {
        let bias = bias.map(|bias| &bias[expert * row_bytes..][..row_bytes]);
        for first in rows.clone().step_by(MOST_EXPERT_ROWS) {
            let rows = first..rows.end.min(first + MOST_EXPERT_ROWS);
            let into = &mut into[rows.start * row_bytes..rows.end * row_bytes];
            let into = Sums::of(into, y.dtype, [rows.len(), to], bias, false);
            any_product(into, 1.0, x.rows(rows), experts[expert], scratch, call.threads);
        }
    }
}

/// dbias = Σ dy over the rows of each expert, added to the previous values if `keep`.
fn sum_rows<E: Float>(call: &Call, dbias: &mut [f32], keep: bool) {
    let (dy, bounds, columns) = (operand::<E>(call, 1), call.i32(2), call.io.inputs[1].columns());
    parallel::for_each(dy.len(), dbias.par_chunks_exact_mut(columns).zip(bounds.par_windows(2)), |(dbias, rows)| {
        if !keep {
            dbias.fill(0.0);
        }
        let rows = &dy[rows[0] as usize * columns..rows[1] as usize * columns];
        rows.chunks_exact(columns).for_each(|row| E::accumulate(row, dbias));
    });
}
