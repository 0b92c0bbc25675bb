//! Reference of `ops/linear.rs` and `ops/linear_add.rs`.

use super::{Real, RefCall, Reference, start};
use plimsoll_graph::ops::{Linear, LinearAdd, LinearInputGrad, LinearWeightGrad, WeightLayout};

/// The index of the weight from channel `i` to channel `o`.
fn place(layout: WeightLayout, i: usize, o: usize, from: usize, to: usize) -> usize {
    match layout {
        WeightLayout::InOut => i * to + o,
        WeightLayout::OutIn => o * from + i,
    }
}

impl Reference for Linear {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (x, weight) = (call.f(0), call.f(1));
        let (from, to) = (call.io.inputs[0].columns(), call.io.outputs[0].columns());
        for (x, y) in x.chunks_exact(from).zip(outputs[0].chunks_exact_mut(to)) {
            for (o, y) in y.iter_mut().enumerate() {
                let dot =
                    (0..from).map(|i| x[i].to_f64() * weight[place(self.layout, i, o, from, to)].to_f64()).sum::<f64>();
                *y = F::from_f64(dot + if self.bias { call.f(2)[o].to_f64() } else { 0.0 });
            }
        }
    }
}

impl Reference for LinearInputGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (dy, weight) = (call.f(0), call.f(1));
        let (from, to) = (call.io.outputs[0].columns(), call.io.inputs[0].columns());
        for (dy, dx) in dy.chunks_exact(to).zip(outputs[0].chunks_exact_mut(from)) {
            for (i, dx) in dx.iter_mut().enumerate() {
                let dot = (0..to).map(|o| dy[o].to_f64() * weight[place(self.layout, i, o, from, to)].to_f64()).sum();
                *dx = F::from_f64(dot);
            }
        }
    }
}

impl Reference for LinearWeightGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (x, dy) = (call.f(0), call.f(1));
        let (from, to) = (call.io.inputs[0].columns(), call.io.inputs[1].columns());
        for sum in outputs.iter_mut() {
            start(self.accumulate, sum);
        }
        for o in 0..to {
            let column = || dy.iter().skip(o).step_by(to).map(|dy| dy.to_f64());
            for i in if self.weight { 0..from } else { 0..0 } {
                let dot = x.iter().skip(i).step_by(from).zip(column()).map(|(x, dy)| x.to_f64() * dy).sum();
                outputs[0][place(self.layout, i, o, from, to)] += F::from_f64(dot);
            }
            if self.bias {
                outputs[usize::from(self.weight)][o] += F::from_f64(column().sum());
            }
        }
    }
}

impl Reference for LinearAdd {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (base, x, weight) = (call.f(0), call.f(1), call.f(2));
        let (from, to) = (call.io.inputs[1].columns(), call.io.outputs[0].columns());
        let rows = x.chunks_exact(from).zip(base.chunks_exact(to)).zip(outputs[0].chunks_exact_mut(to));
        for ((x, base), y) in rows {
            for (o, (y, base)) in y.iter_mut().zip(base).enumerate() {
                let terms = (0..from).map(|i| x[i].to_f64() * weight[place(self.layout, i, o, from, to)].to_f64());
                *y = F::from_f64(base.to_f64() + terms.sum::<f64>());
            }
        }
    }
}
