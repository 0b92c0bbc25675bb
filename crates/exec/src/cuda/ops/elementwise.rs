//! Launches of kernels that pass over elements, for all ops whose kernels take only operands, results, their number of
//! elements and constants.

use super::shape::{launch, named, vectors};
use crate::cuda::launch::{Arguments, Operands, Part};

/// Operands, results, number of elements.
pub(super) fn arguments(operands: &Operands) -> Arguments {
    let elements = operands.io.outputs[0].elements() as u64;
    Arguments::default().addresses(&operands.inputs).addresses(&operands.outputs).long(elements)
}

/// A kernel that takes the [`arguments`] and then `constants`, with a thread for each vector.
pub(super) fn parts(module: &'static str, kernel: &str, operands: &Operands, constants: &[f32]) -> Vec<Part> {
    let y = operands.io.outputs[0];
    let arguments = constants.iter().copied().fold(arguments(operands), Arguments::float);
    vec![launch(module, named(kernel, y), vectors(y), arguments).into()]
}
