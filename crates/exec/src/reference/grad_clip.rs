//! Reference of `ops/grad_clip.rs`.

use super::{Real, RefCall, Reference};
use plimsoll_graph::ops::GradClip;

impl Reference for GradClip {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let scale = f64::from(call.scalars.gradient_scale);
        outputs[0][0] = call.f(0)[0].map(|norm| match self.max_norm {
            _ if !norm.is_finite() => f64::NAN,
            Some(limit) => (f64::from(limit) / (norm / scale + 1e-6)).min(1.0) / scale,
            None => 1.0 / scale,
        });
    }
}
