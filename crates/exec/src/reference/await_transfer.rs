//! Reference of `ops/await_transfer.rs`.

use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::AwaitTransfer;

impl Reference for AwaitTransfer {
    /// Nothing: the reference runs one op at a time.
    fn compute<F: Real>(&self, _call: &RefCall<F>, _outputs: &mut [Vec<F>]) {}
}
