//! Reference of `ops/positions.rs`.

use super::{Real, RefCall, Reference, start};
use plimsoll_graph::ops::{Positions, PositionsGrad};

impl Reference for Positions {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (x, table, shape) = (call.f(0), call.f(1), &call.io.inputs[0].shape);
        let first = if self.offset { call.scalars.position as usize } else { 0 };
        for (i, y) in outputs[0].iter_mut().enumerate() {
            let (t, k) = (i / shape[2] % shape[1], i % shape[2]);
            let row = if self.same { 0 } else { first + t };
            *y = x[i] + table[row * shape[2] + k];
        }
    }
}

impl Reference for PositionsGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (dy, shape) = (call.f(0), &call.io.inputs[0].shape);
        start(self.accumulate, &mut outputs[0]);
        for (i, &dy) in dy.iter().enumerate() {
            let within = if self.same { shape[2] } else { shape[1] * shape[2] };
            outputs[0][i % within] += dy;
        }
    }
}
