//! Reference of `ops/grad_norm.rs`.

use super::{Real, RefCall};

pub(super) fn grad_norm<F: Real>(call: &RefCall<F>, outputs: &mut [Vec<F>]) {
    let squares = call.inputs.iter().flat_map(|g| g.floats()).map(|g| g.to_f64().powi(2)).sum::<f64>();
    outputs[0][0] = F::from_f64(squares.sqrt());
}
