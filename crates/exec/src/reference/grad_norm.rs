//! Reference of `ops/grad_norm.rs`.

use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::GradNorm;

impl Reference for GradNorm {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let norm_of = |gradient: &[F]| F::from_f64(gradient.iter().map(|g| g.to_f64().powi(2)).sum::<f64>().sqrt());
        let squares = call.inputs.iter().map(|g| norm_of(g.floats()).to_f64().powi(2)).sum::<f64>();
        outputs[0][0] = F::from_f64(squares.sqrt());
    }
}
