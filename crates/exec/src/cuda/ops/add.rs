//! Launches of `kernels/add.cu`.

use super::super::launch::{Arguments, Launch, Operands};
use super::shape;

pub(super) fn launches(operands: &Operands) -> Vec<Launch> {
    let y = operands.io.outputs[0];
    let arguments =
        Arguments::default().addresses(&operands.inputs).address(operands.outputs[0]).long(y.elements() as u64);
    vec![Launch {
        module: "add",
        entry: format!("add_{}", shape::suffix(y.dtype)).into(),
        grid: shape::vectors(y),
        threads: shape::THREADS,
        shared_bytes: 0,
        arguments,
    }]
}
