//! The factor by which gradients are scaled down.

use super::CpuKernel;
use crate::call::Call;
use plimsoll_graph::ops;

impl CpuKernel for ops::GradClip {
    fn run(&self, mut call: Call) {
        let norm = call.f32(0)[0] / call.scalars.gradient_scale;
        let [factor] = call.take_outputs();
        factor[0] = match self.max_norm {
            _ if !norm.is_finite() => f32::NAN,
            Some(max_norm) => (max_norm / (norm + 1e-6)).min(1.0) / call.scalars.gradient_scale,
            None => 1.0 / call.scalars.gradient_scale,
        };
    }
}
