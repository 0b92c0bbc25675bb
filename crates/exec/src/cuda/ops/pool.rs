//! Launches of `kernels/pool.cu`.

use super::CudaKernel;
use super::shape::{THREADS, extent, launch, named};
use crate::cuda::launch::{Arguments, Launch, Operands, Part};
use plimsoll_graph::TensorType;
use plimsoll_graph::ops::{Pool, PoolGrad, Pooling};

/// A launch of blocks for `rows` rows of x by stretches of its columns. `addresses`: the kernel's pointers.
fn of_rows(entry: &str, x: &TensorType, rows: usize, addresses: &[u64], pooling: Pooling) -> Launch {
    let (tokens, columns) = (x.shape[1], x.shape[2]);
    let grid = [extent(rows), extent(columns.div_ceil(THREADS as usize)), 1];
    let arguments = Arguments::default().addresses(addresses).int(tokens).int(columns).flag(pooling == Pooling::First);
    launch("pool", named(entry, x), grid, arguments)
}

impl CudaKernel for Pool {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let x = operands.io.inputs[0];
        let addresses = [operands.inputs[0], operands.inputs[1], operands.outputs[0]];
        vec![of_rows("pool", x, x.shape[0], &addresses, self.pooling).into()]
    }
}

impl CudaKernel for PoolGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let dx = operands.io.outputs[0];
        let addresses = [operands.inputs[0], operands.inputs[1], operands.outputs[0]];
        vec![of_rows("pool_grad", dx, dx.rows(), &addresses, self.pooling).into()]
    }
}
