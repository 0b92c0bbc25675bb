//! Reference of `ops/positions.rs`.

use super::{Real, RefCall, start};
use plimsoll_graph::ops::{Positions, PositionsGrad};

pub(super) fn positions<F: Real>(op: &Positions, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
    let (x, table, shape) = (call.f(0), call.f(1), &call.io.inputs[0].shape);
    let first = if op.offset { call.scalars.position as usize } else { 0 };
    for (i, y) in outputs[0].iter_mut().enumerate() {
        let (t, k) = (i / shape[2] % shape[1], i % shape[2]);
        *y = x[i] + table[(first + t) * shape[2] + k];
    }
}

pub(super) fn positions_grad<F: Real>(op: &PositionsGrad, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
    let (dy, shape) = (call.f(0), &call.io.inputs[0].shape);
    start(op.accumulate, &mut outputs[0]);
    for (i, &dy) in dy.iter().enumerate() {
        outputs[0][i % (shape[1] * shape[2])] += dy;
    }
}
