//! Launches of `kernels/positions.cu`.

use super::shape::{THREADS, extent, launch, named, vector};
use crate::cuda::launch::{Arguments, Launch, Operands};
use plimsoll_graph::ops::{Positions, PositionsGrad};

pub(super) fn launches(op: &Positions, operands: &Operands) -> Vec<Launch> {
    let x = operands.io.inputs[0];
    let (columns, scalars) = (x.columns(), if op.offset { operands.scalars } else { 0 });
    let grid = [extent(x.rows()), extent(columns.div_ceil(vector(x) * THREADS as usize)), 1];
    let arguments = Arguments::default()
        .addresses(&operands.inputs)
        .addresses(&[operands.outputs[0], scalars])
        .int(x.shape[1])
        .int(columns);
    vec![launch("positions", named("positions", x), grid, arguments)]
}

pub(super) fn grad(op: &PositionsGrad, operands: &Operands) -> Vec<Launch> {
    let dy = operands.io.inputs[0];
    let grid = [extent(op.positions), extent(dy.columns().div_ceil(THREADS as usize)), 1];
    let arguments = Arguments::default()
        .addresses(&[operands.inputs[0], operands.outputs[0]])
        .int(dy.shape[0])
        .int(dy.shape[1])
        .int(dy.columns())
        .flag(op.accumulate);
    vec![launch("positions", named("positions_grad", dy), grid, arguments)]
}
