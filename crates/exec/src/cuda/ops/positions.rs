//! Launches of `kernels/positions.cu`.

use super::shape::{THREADS, extent, launch, named, vector};
use super::{CudaKernel, row_sums};
use crate::cuda::launch::{Arguments, Operands, Part};
use plimsoll_graph::ops::{Positions, PositionsGrad};

impl CudaKernel for Positions {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let x = operands.io.inputs[0];
        let (columns, scalars) = (x.columns(), if self.offset { operands.scalars } else { 0 });
        let grid = [extent(x.rows()), extent(columns.div_ceil(vector(x) * THREADS as usize)), 1];
        let arguments = Arguments::default()
            .addresses(&operands.inputs)
            .addresses(&[operands.outputs[0], scalars])
            .int(if self.same { 1 } else { x.shape[1] })
            .int(columns);
        vec![launch("positions", named("positions", x), grid, arguments).into()]
    }
}

impl CudaKernel for PositionsGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let dy = operands.io.inputs[0];
        let (from, to) = (operands.inputs[0], operands.outputs[0]);
        let grid = [extent(self.positions), extent(dy.columns().div_ceil(THREADS as usize)), 1];
        let of_tokens = |tokens: usize| {
            let arguments = Arguments::default().addresses(&[from, to]).int(dy.shape[0]).int(tokens);
            let arguments = arguments.int(dy.columns()).flag(self.accumulate);
            launch("positions", named("positions_grad", dy), grid, arguments)
        };
        if !self.same {
            return vec![of_tokens(dy.shape[1]).into()];
        }
        let zeros = (!self.accumulate).then(|| of_tokens(0));
        let sums = row_sums::launches(dy, from, to, operands.scratch.address, true);
        zeros.into_iter().chain(sums).map(Part::Kernel).collect()
    }
}
