//! Launches of `kernels/uniform_noise.cu`.

use super::CudaKernel;
use super::shape::{blocks, launch, named};
use crate::cuda::launch::{Arguments, Operands, Part};
use plimsoll_graph::ops::UniformNoise;

impl CudaKernel for UniformNoise {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let x = operands.io.inputs[0];
        let samples = x.shape[0];
        let per_sample = x.elements() / samples;
        let arguments = Arguments::default()
            .addresses(&[operands.inputs[0], operands.outputs[0], operands.scalars])
            .long(samples as u64)
            .long(per_sample as u64)
            .word(self.site)
            .float(self.amplitude / 2f32.powi(31));
        let grid = blocks(samples * per_sample.div_ceil(4), 1);
        vec![launch("uniform_noise", named("uniform_noise", x), grid, arguments).into()]
    }
}
