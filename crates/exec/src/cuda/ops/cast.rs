//! Launches of `kernels/cast.cu`. A cast to the same precision is a copy.

use super::shape::{blocks, launch, suffix};
use super::{CudaKernel, elementwise, transfer};
use crate::cuda::launch::{Operands, Part};
use plimsoll_graph::ops::Cast;

/// Elements per thread: `COUNT` of `cast.cu`.
const COUNT: usize = 8;

impl CudaKernel for Cast {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        let (from, to) = (operands.io.inputs[0], operands.io.outputs[0]);
        if from.dtype == to.dtype {
            return vec![transfer::copy_operand(operands).into()];
        }
        let entry = format!("cast_{}_{}", suffix(from.dtype), suffix(to.dtype));
        vec![launch("cast", entry, blocks(to.elements(), COUNT), elementwise::arguments(operands)).into()]
    }
}
