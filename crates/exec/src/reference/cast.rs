//! Reference of `ops/cast.rs`.

use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::Cast;

impl Reference for Cast {
    /// Values have one precision here, so a cast is a copy.
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        outputs[0].copy_from_slice(call.f(0));
    }
}
