//! Reference of `ops/column_scale.rs`.

use super::{Real, RefCall, Reference, start};
use plimsoll_graph::ops::{ColumnScale, ColumnScaleGrad};

/// A number over a norm; zero if the norm is.
fn over<F: Real>(number: F, norm: F) -> f64 {
    if norm.to_f64() > 0.0 { number.to_f64() / norm.to_f64() } else { 0.0 }
}

impl Reference for ColumnScale {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (x, magnitude, norm) = (call.f(0), call.f(1), call.f(2));
        let columns = norm.len();
        for (index, y) in outputs[0].iter_mut().enumerate() {
            let c = index % columns;
            let bias = if self.bias { call.f(3)[c].to_f64() } else { 0.0 };
            *y = F::from_f64(x[index].to_f64() * over(magnitude[c], norm[c]) + bias);
        }
    }
}

impl Reference for ColumnScaleGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (dy, x, magnitude, norm) = (call.f(0), call.f(1), call.f(2), call.f(3));
        let columns = norm.len();
        for (index, dx) in outputs[0].iter_mut().enumerate() {
            let c = index % columns;
            *dx = F::from_f64(dy[index].to_f64() * over(magnitude[c], norm[c]));
        }
        let Some(sums) = outputs.get_mut(1) else { return };
        start(self.accumulate, sums);
        for (c, sum) in sums.iter_mut().enumerate() {
            let column = (c..x.len()).step_by(columns).map(|index| dy[index].to_f64() * x[index].to_f64());
            *sum += F::from_f64(over(F::from_f64(column.sum()), norm[c]));
        }
    }
}
