//! Routes tokens to experts: choices in parallel by parts of the tokens, whose counts then give every choice its place.

use super::CpuKernel;
use super::half::Float;
use super::math::{exp, sum, update};
use super::parallel;
use super::tiles::{in_precision, operand, results};
use super::vectorize::vectorized;
use crate::call::Call;
use plimsoll_graph::ops;
use plimsoll_graph::ops::tokens_of_part;
use rayon::iter::IndexedParallelIterator;
use rayon::slice::{ParallelSlice, ParallelSliceMut};

impl CpuKernel for ops::Route {
    fn run(&self, call: Call) {
        in_precision!(call, run(self, call));
    }
}

impl CpuKernel for ops::RouteGrad {
    fn run(&self, call: Call) {
        in_precision!(call, run_grad(self, call));
    }
}

/// A logit as an integer in the same order; NaN is above infinity.
fn order_of(logit: f32) -> u32 {
    // Adding zero turns minus zero into zero.
    let bits = if logit.is_nan() { 0x7FC0_0000 } else { (logit + 0.0).to_bits() };
    bits ^ if bits >> 31 == 1 { u32::MAX } else { 1 << 31 }
}

/// Writes the experts with the largest logits, the lower index first among equals.
fn choose(logits: &[f32], experts: &mut [i32]) {
    let keys = || logits.iter().zip(0u32..).map(|(&logit, e)| u64::from(order_of(logit)) << 32 | u64::from(!e));
    let mut last = u64::MAX;
    for expert in experts {
        last = keys().filter(|&key| key < last).max().expect("there are at least as many experts as choices");
        *expert = !(last as u32) as i32;
    }
}

vectorized! {
    /// Replaces logits by their exponentials over that of `largest`. Returns the sum.
    fn exponentials_over<S: Simd>(simd: S, logits: &mut [f32], largest: f32) -> f32 {
        let x = &mut *logits;
        update!(simd, [x], exp(simd, simd.sub_f32s(x, simd.splat_f32s(largest))));
        sum(simd, logits)
    }

    /// sums += exponentials · factor.
    fn add_scaled<S: Simd>(simd: S, sums: &mut [f32], exponentials: &[f32], factor: f32) {
        for (sum, x) in sums.iter_mut().zip(exponentials) {
            *sum += x * factor;
        }
    }
}

/// The sum of the chosen exponentials, in the order of the choices.
fn total_of(exponentials: &[f32], experts: &[i32]) -> f32 {
    experts.iter().map(|&expert| exponentials[expert as usize]).sum()
}

fn run<E: Float>(op: &ops::Route, mut call: Call) {
    let logits = operand::<E>(&call, 0);
    let (tokens, count, chosen) = (call.io.inputs[0].rows(), call.io.inputs[0].columns(), op.experts_per_token);
    let scratch = call.take_scratch();
    let mut outputs = call.take_byte_outputs();
    let mut next = || outputs.next().expect("the op's types name each result");
    let weights = bytemuck::cast_slice_mut::<u8, f32>(next());
    let [experts, places, bounds] = [(); 3].map(|()| bytemuck::cast_slice_mut::<u8, i32>(next()));
    let each = tokens_of_part(tokens);
    let parts = tokens.div_ceil(each);
    let (counts, scratch) = scratch.split_at_mut(parts * count);
    let (rows, sums) = scratch.split_at_mut(parts * count);
    let counts = bytemuck::cast_slice_mut::<f32, i32>(counts);
    // Without sums, parts have empty slices of them.
    let (sums, sums_of_part) = if op.sums { (&mut sums[..parts * count], count) } else { (&mut sums[..0], 0) };
    {
        let mut of_sums = sums.chunks_exact_mut(sums_of_part.max(1));
        let of_sums = (0..parts).map(|_| of_sums.next().unwrap_or_default()).collect::<Vec<_>>();
        let of_tokens = logits.par_chunks(each * count).zip(weights.par_chunks_mut(each * chosen));
        let of_tokens = of_tokens.zip(experts.par_chunks_mut(each * chosen));
        let of_part = counts.par_chunks_exact_mut(count).zip(rows.par_chunks_exact_mut(count)).zip(of_sums);
        let elements = (2 + chosen) * logits.len();
        parallel::for_each(
            elements,
            of_tokens.zip(of_part),
            |(((logits, weights), experts), ((counts, row), sums))| {
                counts.fill(0);
                sums.fill(0.0);
                let choices = weights.chunks_exact_mut(chosen).zip(experts.chunks_exact_mut(chosen));
                for (logits, (weights, experts)) in logits.chunks_exact(count).zip(choices) {
                    E::widen(logits, row);
                    choose(row, experts);
                    experts.iter().for_each(|&expert| counts[expert as usize] += 1);
                    let all = exponentials_over(row, row[experts[0] as usize]);
                    if !sums.is_empty() {
                        add_scaled(sums, row, 1.0 / all);
                    }
                    let total = if op.normalized { total_of(row, experts) } else { all };
                    weights
                        .iter_mut()
                        .zip(&*experts)
                        .for_each(|(weight, &expert)| *weight = row[expert as usize] / total);
                }
            },
        );
    }
    first_places(counts, bounds);
    let of_tokens = places.par_chunks_mut(each * chosen).zip(experts.par_chunks(each * chosen));
    let of_tokens = of_tokens.zip(counts.par_chunks_exact_mut(count));
    parallel::for_each(2 * experts.len(), of_tokens, |((places, experts), next)| {
        for (place, &expert) in places.iter_mut().zip(experts) {
            *place = next[expert as usize];
            next[expert as usize] += 1;
        }
    });
    if op.sums {
        let into = bytemuck::cast_slice_mut::<u8, f32>(next());
        into.fill(0.0);
        sums.chunks_exact(count).for_each(|part| super::sums::accumulate(into, part));
    }
}

/// Writes the bounds of the experts, and replaces the counts of each part by the places of its first choices.
fn first_places(counts: &mut [i32], bounds: &mut [i32]) {
    let count = bounds.len() - 1;
    let mut place = 0;
    for (expert, bound) in bounds[..count].iter_mut().enumerate() {
        *bound = place;
        for first in counts.iter_mut().skip(expert).step_by(count) {
            place += std::mem::replace(first, place);
        }
    }
    bounds[count] = place;
}

fn run_grad<E: Float>(op: &ops::RouteGrad, mut call: Call) {
    let (logits, experts, dweights) = (operand::<E>(&call, 0), call.i32(1), call.f32(2));
    let dsums = op.sums.then(|| call.f32(3));
    let (count, chosen) = (call.io.inputs[0].columns(), call.io.inputs[1].columns());
    let each = tokens_of_part(call.io.inputs[0].rows());
    let rows = call.take_scratch();
    let [dlogits] = results::<E, 1>(&mut call);
    let of_tokens = logits.par_chunks(each * count).zip(experts.par_chunks(each * chosen));
    let of_tokens = of_tokens.zip(dweights.par_chunks(each * chosen)).zip(dlogits.par_chunks_mut(each * count));
    let parts = of_tokens.zip(rows.par_chunks_exact_mut(count));
    parallel::for_each(6 * logits.len(), parts, |((((logits, experts), dweights), dlogits), row)| {
        let choices = experts.chunks_exact(chosen).zip(dweights.chunks_exact(chosen));
        let tokens = logits.chunks_exact(count).zip(dlogits.chunks_exact_mut(count));
        for ((logits, dlogits), (experts, dweights)) in tokens.zip(choices) {
            E::widen(logits, row);
            gradient_of_token(op.normalized, row, experts, dweights, dsums);
            E::round(row, dlogits);
        }
    });
}

/// Replaces a token's logits by their gradient. That of a softmax is p · (dp - Σ p · dp).
fn gradient_of_token(normalized: bool, row: &mut [f32], experts: &[i32], dweights: &[f32], dsums: Option<&[f32]>) {
    let all = exponentials_over(row, row[experts[0] as usize]);
    let total = if normalized { total_of(row, experts) } else { all };
    let choices = || experts.iter().map(|&expert| expert as usize).zip(dweights);
    let of_weights = choices().map(|(expert, dweight)| row[expert] / total * dweight).sum::<f32>();
    let of_sums = dsums.map_or(0.0, |dsums| row.iter().zip(dsums).map(|(x, dsum)| x / all * dsum).sum::<f32>());
    // The softmax of the weights is over all experts, or over the chosen ones.
    let mean = of_sums + if normalized { 0.0 } else { of_weights };
    let subtracted = if normalized { of_weights } else { 0.0 };
    for (e, x) in row.iter_mut().enumerate() {
        let of_choice =
            choices().find(|(expert, _)| *expert == e).map_or(0.0, |(_, dweight)| *x / total * (dweight - subtracted));
        *x = *x / all * (dsums.map_or(0.0, |dsums| dsums[e]) - mean) + of_choice;
    }
}
