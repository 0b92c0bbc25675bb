//! The loss on the balance of experts, from a few numbers per expert and layer: on one worker.

use super::CpuKernel;
use crate::call::Call;
use plimsoll_graph::ops;

impl CpuKernel for ops::RouterLoss {
    fn run(&self, mut call: Call) {
        let [loss, dsums] = call.take_outputs();
        let (layers, experts) = (call.inputs.len() / 2, dsums.len());
        let tokens = call.i32(layers)[experts] as f32 / self.experts_per_token as f32 * layers as f32;
        let scale = call.scalars.micro_batch_share * self.coefficient * experts as f32 / (tokens * tokens);
        let mut sum = 0.0;
        for (e, dsum) in dsums.iter_mut().enumerate() {
            let choices = (layers..2 * layers).map(|layer| call.i32(layer)[e + 1] - call.i32(layer)[e]).sum::<i32>();
            let slope = scale * choices as f32;
            sum += slope * (0..layers).map(|layer| call.f32(layer)[e]).sum::<f32>();
            *dsum = slope * call.scalars.gradient_scale;
        }
        loss[0] = if self.accumulate { loss[0] + sum } else { sum };
    }
}
