//! Reference of `ops/router_loss.rs`.

use super::{Real, RefCall, Reference, start};
use plimsoll_graph::ops::RouterLoss;

impl Reference for RouterLoss {
    fn compute<F: Real>(&self, call: &RefCall<F>, outputs: &mut [Vec<F>]) {
        let (layers, experts) = (call.inputs.len() / 2, call.io.inputs[0].elements());
        let tokens = f64::from(call.i(layers)[experts]) / self.experts_per_token as f64 * layers as f64;
        let factor = f64::from(call.scalars.micro_batch_share) * f64::from(self.coefficient) * experts as f64;
        start(self.accumulate, &mut outputs[0]);
        for e in 0..experts {
            let choices = (layers..2 * layers).map(|layer| f64::from(call.i(layer)[e + 1] - call.i(layer)[e]));
            let choices = choices.sum::<f64>() / tokens;
            let probability = (0..layers).map(|layer| call.f(layer)[e].to_f64()).sum::<f64>() / tokens;
            outputs[0][0] += F::from_f64(factor * choices * probability);
            let slope = factor * choices / tokens;
            outputs[1][e] = F::from_f64(slope * f64::from(call.scalars.gradient_scale));
        }
    }
}
