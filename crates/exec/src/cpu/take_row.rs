//! Selection of one token's row.

use super::CpuKernel;
use crate::call::Call;
use plimsoll_graph::ops;

impl CpuKernel for ops::TakeRow {
    fn run(&self, mut call: Call) {
        let x = call.bytes(0);
        let samples = call.io.inputs[0].shape[0];
        for y in call.take_byte_outputs() {
            let row = y.len() / samples;
            let first = call.scalars.row as usize * row;
            for (y, x) in y.chunks_exact_mut(row).zip(x.chunks_exact(x.len() / samples)) {
                y.copy_from_slice(&x[first..first + row]);
            }
        }
    }
}
