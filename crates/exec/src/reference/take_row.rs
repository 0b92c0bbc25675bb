//! Reference of `ops/take_row.rs`.

use super::{Real, RefCall};

pub(super) fn take_row<F: Real>(call: &RefCall<F>, outputs: &mut [Vec<F>]) {
    let (c, row) = (call.io.inputs[0].columns(), call.scalars.row as usize);
    outputs[0].copy_from_slice(&call.f(0)[row * c..(row + 1) * c]);
}
