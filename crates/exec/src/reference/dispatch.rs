//! Reference of `ops/dispatch.rs`.

use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::{Combine, CombineWeightGrad, Dispatch};

/// The weight of a choice: that of operand 2 if there is one.
fn weight<F: Real>(weighted: bool, call: &RefCall<F>, choice: usize) -> f64 {
    if weighted { call.f(2)[choice].to_f64() } else { 1.0 }
}

impl Reference for Dispatch {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (x, places, c) = (call.f(0), call.i(1), call.io.inputs[0].columns());
        let chosen = call.io.inputs[1].columns();
        for (choice, &place) in places.iter().enumerate() {
            for k in 0..c {
                let value = x[choice / chosen * c + k].to_f64() * weight(self.weighted, call, choice);
                outputs[0][place as usize * c + k] = F::from_f64(value);
            }
        }
    }
}

impl Reference for Combine {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (rows, places, c) = (call.f(0), call.i(1), call.io.inputs[0].columns());
        let chosen = call.io.inputs[1].columns();
        for (token, places) in places.chunks_exact(chosen).enumerate() {
            for k in 0..c {
                let term = |(choice, &place): (usize, &i32)| {
                    rows[place as usize * c + k].to_f64() * weight(self.weighted, call, token * chosen + choice)
                };
                outputs[0][token * c + k] = F::from_f64(places.iter().enumerate().map(term).sum());
            }
        }
    }
}

impl Reference for CombineWeightGrad {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (x, rows, places, c) = (call.f(0), call.f(1), call.i(2), call.io.inputs[0].columns());
        let chosen = call.io.inputs[2].columns();
        for (choice, &place) in places.iter().enumerate() {
            let (x, row) = (&x[choice / chosen * c..][..c], &rows[place as usize * c..][..c]);
            let dot = x.iter().zip(row).map(|(x, row)| x.to_f64() * row.to_f64()).sum();
            outputs[0][choice] = F::from_f64(dot);
        }
    }
}
