//! Launches of `kernels/gated.cu`.

use super::shape::{blocks, launch, named};
use super::{CudaKernel, elementwise};
use crate::cuda::launch::{Operands, Part};
use plimsoll_graph::ops::{Activation, Gated, GatedGrad};

/// Elements per thread: `COUNT` of `gated.cu`.
const COUNT: usize = 4;

impl CudaKernel for Gated {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        parts(self.activation, "", operands)
    }
}

impl CudaKernel for GatedGrad {
    fn parts(&self, operands: &Operands) -> Vec<Part> {
        parts(self.activation, "_grad", operands)
    }
}

fn parts(activation: Activation, pass: &str, operands: &Operands) -> Vec<Part> {
    let name = match activation {
        Activation::Silu => "silu",
        Activation::GeluTanh => "gelu_tanh",
        Activation::Gelu => "gelu",
        Activation::Relu => "relu",
    };
    let y = operands.io.outputs[0];
    let entry = named(&format!("gated_{name}{pass}"), y);
    vec![launch("gated", entry, blocks(y.elements(), COUNT), elementwise::arguments(operands)).into()]
}
