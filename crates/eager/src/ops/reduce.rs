//! Sums that the tape does not record.

use crate::runtime::Tensor;

/// A tensor summed to a shape that broadcasts to its own; a view if only leading dimensions of size 1 are missing. Leading
/// dimensions are removed by a view of the sum. Source: `sum_to` of `ExpandUtils.h`.
pub(crate) fn sum_to(tensor: &Tensor, shape: &[u64]) -> Tensor {
    if tensor.elements() == shape.iter().product::<u64>() {
        return tensor.viewed(shape).expect("dimensions of size 1 can be removed");
    }
    let sum = Tensor::new(tensor.rt(), shape, tensor.dtype(), "sum");
    if tensor.dim() == shape.len() { sum } else { sum.alias(shape.to_vec(), sum.strides().to_vec()) }
}
