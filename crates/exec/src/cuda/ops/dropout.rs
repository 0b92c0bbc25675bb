//! Launches of `kernels/dropout.cu`.

use super::CudaKernel;
use super::shape::{blocks, launch, named};
use crate::cuda::launch::{Arguments, Operands, Part};
use crate::philox::dropout_threshold;
use plimsoll_graph::ops::Dropout;

impl CudaKernel for Dropout {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let x = operands.io.inputs[0];
        let (samples, rate) = (x.shape[0], self.key.rate);
        let per_sample = x.elements() / samples;
        let arguments = Arguments::default()
            .addresses(&[operands.inputs[0], operands.outputs[0], operands.scalars])
            .long(samples as u64)
            .long(per_sample as u64)
            .word(self.key.site)
            .word(dropout_threshold(rate))
            .float((1.0 / (1.0 - f64::from(rate))) as f32);
        vec![launch("dropout", named("dropout", x), blocks(samples * per_sample.div_ceil(4), 1), arguments).into()]
    }
}
