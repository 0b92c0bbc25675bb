//! Reference of `ops/expert_linear.rs` and `ops/quantized_expert_linear.rs`.

use super::quantized_linear::weights;
use super::{Real, RefCall, Reference, start};
use plimsoll_graph::ops::{
    ExpertLinear, ExpertLinearInputGrad, ExpertLinearWeightGrad, QuantizedExpertLinear, QuantizedExpertLinearInputGrad,
    WeightLayout,
};

/// The index of the weight of an expert from channel `i` to channel `o`.
fn place(layout: WeightLayout, expert: usize, [i, o]: [usize; 2], [from, to]: [usize; 2]) -> usize {
    expert * from * to
        + match layout {
            WeightLayout::InOut => i * to + o,
            WeightLayout::OutIn => o * from + i,
        }
}

/// Each row's expert.
fn experts_of_rows(bounds: &[i32]) -> Vec<usize> {
    let rows = bounds.windows(2).map(|two| (two[1] - two[0]) as usize);
    rows.enumerate().flat_map(|(expert, rows)| std::iter::repeat_n(expert, rows)).collect()
}

/// y = x W + b of the expert of each row. `bounds` and `bias`: operands.
fn multiply<F: Real>(
    call: &RefCall<F>,
    y: &mut [F],
    (layout, weight): (WeightLayout, &[f64]),
    bounds: usize,
    bias: Option<usize>,
) {
    let x = call.f(0);
    let [from, to] = [call.io.inputs[0].columns(), call.io.outputs[0].columns()];
    for (row, expert) in experts_of_rows(call.i(bounds)).into_iter().enumerate() {
        for o in 0..to {
            let term = |i: usize| x[row * from + i].to_f64() * weight[place(layout, expert, [i, o], [from, to])];
            let bias = bias.map_or(0.0, |bias| call.f(bias)[expert * to + o].to_f64());
            y[row * to + o] = F::from_f64((0..from).map(term).sum::<f64>() + bias);
        }
    }
}

/// dx = dy Wᵀ of the expert of each row. `bounds`: an operand.
fn multiply_back<F: Real>(call: &RefCall<F>, dx: &mut [F], (layout, weight): (WeightLayout, &[f64]), bounds: usize) {
    let dy = call.f(0);
    let [from, to] = [call.io.outputs[0].columns(), call.io.inputs[0].columns()];
    for (row, expert) in experts_of_rows(call.i(bounds)).into_iter().enumerate() {
        for i in 0..from {
            let term = |o: usize| dy[row * to + o].to_f64() * weight[place(layout, expert, [i, o], [from, to])];
            dx[row * from + i] = F::from_f64((0..to).map(term).sum());
        }
    }
}

fn doubles<F: Real>(call: &RefCall<F>, operand: usize) -> Vec<f64> {
    call.f(operand).iter().map(|value| value.to_f64()).collect()
}

impl Reference for ExpertLinear {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        multiply(call, &mut outputs[0], (self.layout, &doubles(call, 1)), 2, self.bias.then_some(3));
    }
}

impl Reference for QuantizedExpertLinear {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let bounds = 2 + self.codes.scale_count();
        let weights = weights(self.codes, call);
        multiply(call, &mut outputs[0], (self.layout, &weights), bounds, self.bias.then_some(bounds + 1));
    }
}

impl Reference for ExpertLinearInputGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        multiply_back(call, &mut outputs[0], (self.layout, &doubles(call, 1)), 2);
    }
}

impl Reference for QuantizedExpertLinearInputGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let weights = weights(self.codes, call);
        multiply_back(call, &mut outputs[0], (self.layout, &weights), 2 + self.codes.scale_count());
    }
}

impl Reference for ExpertLinearWeightGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (x, dy) = (call.f(0), call.f(1));
        let [from, to] = [call.io.inputs[0].columns(), call.io.inputs[1].columns()];
        for sum in outputs.iter_mut() {
            start(self.accumulate, sum);
        }
        for (expert, bounds) in call.i(2).windows(2).enumerate() {
            let rows = || bounds[0] as usize..bounds[1] as usize;
            for o in 0..to {
                for i in if self.weight { 0..from } else { 0..0 } {
                    let dot = rows().map(|row| x[row * from + i].to_f64() * dy[row * to + o].to_f64()).sum();
                    outputs[0][place(self.layout, expert, [i, o], [from, to])] += F::from_f64(dot);
                }
                if self.bias {
                    let sum = rows().map(|row| dy[row * to + o].to_f64()).sum();
                    outputs[usize::from(self.weight)][expert * to + o] += F::from_f64(sum);
                }
            }
        }
    }
}
