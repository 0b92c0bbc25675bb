//! Launches of `grad_clip` of `kernels/grad_norm.cu`.

use super::CudaKernel;
use super::shape::{launch, line};
use crate::cuda::launch::{Arguments, Launch, Operands, Part};
use plimsoll_graph::ops::GradClip;

impl CudaKernel for GradClip {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let arguments = Arguments::default()
            .addresses(&[operands.inputs[0], operands.outputs[0], operands.scalars])
            .float(self.max_norm.unwrap_or(-1.0));
        vec![Launch { threads: 1, ..launch("grad_norm", "grad_clip", line(1), arguments) }.into()]
    }
}
