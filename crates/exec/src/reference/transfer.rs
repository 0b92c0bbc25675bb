//! Reference of `ops/transfer.rs`.

use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::Transfer;

impl Reference for Transfer {
    /// The reference has no memories, so a transfer is a copy.
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        outputs[0].copy_from_slice(call.f(0));
    }
}
