//! Launches of `kernels/moving_average.cu`.

use super::CudaKernel;
use super::shape::{blocks, launch, named};
use crate::cuda::launch::{Arguments, Operands, Part};
use plimsoll_graph::ops::MovingAverage;

impl CudaKernel for MovingAverage {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let (weight, average) = (operands.io.inputs[0], operands.io.outputs[0]);
        let arguments = Arguments::default()
            .addresses(&operands.inputs)
            .addresses(&operands.outputs)
            .long(average.elements() as u64)
            .float(self.decay);
        let has_remainder = operands.inputs.len() > 2;
        let entry = if has_remainder { "moving_average_joined".to_owned() } else { named("moving_average", weight) };
        vec![launch("moving_average", entry, blocks(average.elements(), 1), arguments).into()]
    }
}
