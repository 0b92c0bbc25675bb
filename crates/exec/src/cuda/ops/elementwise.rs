//! Launches of kernels that pass over elements: `add.cu`, `gelu.cu`, `relu.cu`, `gated.cu`, `scale.cu`, `cast.cu`.

use super::shape::{blocks, launch, named, suffix, vectors};
use crate::cuda::launch::{Arguments, Launch, Operands};
use plimsoll_graph::ops::{Activation, Scale};

/// Elements that a thread of `gated.cu` has: its `COUNT`.
const GATED: usize = 4;

/// Operands, results, number of elements: a thread for each vector.
fn arguments(operands: &Operands) -> Arguments {
    let elements = operands.io.outputs[0].elements() as u64;
    Arguments::default().addresses(&operands.inputs).addresses(&operands.outputs).long(elements)
}

/// A kernel that takes operands, results and the number of their elements.
pub(super) fn launches(module: &'static str, kernel: &str, operands: &Operands) -> Vec<Launch> {
    let y = operands.io.outputs[0];
    vec![launch(module, named(kernel, y), vectors(y), arguments(operands))]
}

pub(super) fn gated(activation: Activation, kernel: &str, operands: &Operands) -> Vec<Launch> {
    let name = match activation {
        Activation::Silu => "silu",
        Activation::GeluTanh => "gelu_tanh",
        Activation::Gelu => "gelu",
        Activation::Relu => "relu",
    };
    let y = operands.io.outputs[0];
    let entry = named(&format!("gated_{name}{kernel}"), y);
    vec![launch("gated", entry, blocks(y.elements(), GATED), arguments(operands))]
}

pub(super) fn scale(op: &Scale, operands: &Operands) -> Vec<Launch> {
    let y = operands.io.outputs[0];
    vec![launch("scale", named("scale", y), vectors(y), arguments(operands).float(op.factor))]
}

/// To the same precision it is a copy.
pub(super) fn cast(operands: &Operands) -> Vec<Launch> {
    let (from, to) = (operands.io.inputs[0], operands.io.outputs[0]);
    if from.dtype == to.dtype {
        return super::copies::transfer(operands);
    }
    let entry = format!("cast_{}_{}", suffix(from.dtype), suffix(to.dtype));
    vec![launch("cast", entry, blocks(to.elements(), 8), arguments(operands))]
}
