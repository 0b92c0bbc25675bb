//! Launches of `kernels/router_loss.cu`.

use super::CudaKernel;
use super::shape::{blocks, launch, line};
use crate::cuda::launch::{Arguments, Operands, Part};
use plimsoll_graph::ops::RouterLoss;

impl CudaKernel for RouterLoss {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let (layers, experts) = (operands.inputs.len() / 2, operands.io.inputs[0].elements());
        let totals = [operands.scratch.address, operands.scratch.address + 4 * experts as u64];
        let (sums, bounds) = operands.inputs.split_at(layers);
        let add = |layer: usize| {
            let arguments = Arguments::default().addresses(&[sums[layer], bounds[layer]]).addresses(&totals);
            let arguments = arguments.int(experts).flag(layer == 0);
            launch("router_loss", "router_loss_add", blocks(experts, 1), arguments).into()
        };
        let choices_of_token = self.experts_per_token as f32 / layers as f32;
        let arguments = Arguments::default()
            .addresses(&totals)
            .addresses(&[bounds[0], operands.outputs[0], operands.outputs[1], operands.scalars])
            .int(experts)
            .float(self.coefficient * experts as f32 * choices_of_token * choices_of_token)
            .flag(self.accumulate);
        let loss = launch("router_loss", "router_loss", line(1), arguments).into();
        (0..layers).map(add).chain([loss]).collect()
    }
}
