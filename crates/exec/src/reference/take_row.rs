//! Reference of `ops/take_row.rs`.

use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::TakeRow;

impl Reference for TakeRow {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (t, c, row) = (call.io.inputs[0].shape[1], call.io.inputs[0].columns(), call.scalars.row as usize);
        for (y, x) in outputs[0].chunks_exact_mut(c).zip(call.f(0).chunks_exact(t * c)) {
            y.copy_from_slice(&x[row * c..(row + 1) * c]);
        }
    }
}
