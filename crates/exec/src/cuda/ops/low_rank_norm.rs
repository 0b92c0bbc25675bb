//! Launches of `kernels/low_rank_norm.cu`.

use super::CudaKernel;
use super::shape::{WARP, launch, line, named};
use crate::cuda::launch::{Arguments, Operands, Part};
use plimsoll_graph::ops::LowRankNorm;

impl CudaKernel for LowRankNorm {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let up = operands.io.inputs[2];
        let (outputs, rank) = (up.shape[0], up.shape[1]);
        let arguments = Arguments::default()
            .addresses(&operands.inputs)
            .addresses(&operands.outputs)
            .int(outputs)
            .int(rank)
            .float(self.scale);
        vec![launch("low_rank_norm", named("low_rank_norm", up), line(outputs.div_ceil(WARP)), arguments).into()]
    }
}
